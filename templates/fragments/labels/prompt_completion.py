"""Tokens of prompts with their completions, and the labels that are learned from: the completion and its end."""


def tokenize_example(example: dict, tokenizer, loss_on: str) -> dict:
    """Token ids, and labels: -100 where nothing is learned. The completion begins where both tokenizations part."""
    completion = example["completion"]
    end = "" if completion.endswith(tokenizer.eos_token) else tokenizer.eos_token
    text = example["prompt"] + completion + end
    prompt, tokens = tokenizer([example["prompt"], text], verbose=False)["input_ids"]
    pairs = enumerate(zip(prompt, tokens, strict=False))
    start = next((index for index, (a, b) in pairs if a != b), min(len(prompt), len(tokens)))
    start = max(start, 1) if loss_on == "assistant" else 1  # nothing predicts the first
    return {
        "input_ids": tokens,
        "labels": [-100] * start + tokens[start:],
        "left_out_turns": 0,
        "left_out_thoughts": False,
    }
