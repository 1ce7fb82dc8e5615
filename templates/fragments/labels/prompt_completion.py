"""Tokens of prompts with their completions, and the labels that are learned from: the completion and its end."""


def tokenize_example(example: dict, tokenizer, loss_on: str) -> dict:
    """Token ids, and labels: -100 where nothing is learned. The completion begins where both tokenizations part."""
    texts = [example["prompt"], example["prompt"] + example["completion"]]
    prompt, tokens = (end_once(tokens, tokenizer) for tokens in tokenizer(texts, verbose=False)["input_ids"])
    pairs = enumerate(zip(prompt, tokens, strict=False))
    start = next((index for index, (a, b) in pairs if a != b), min(len(prompt), len(tokens)))
    start = max(start, 1) if loss_on == "assistant" else 1  # nothing predicts the first
    return {
        "input_ids": tokens,
        "labels": [-100] * start + tokens[start:],
        "left_out_turns": 0,
        "left_out_thoughts": False,
    }


def end_once(tokens: list[int], tokenizer) -> list[int]:
    """One mark at the beginning, if the tokenizer writes any, and one at the end: the text may have them too."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokens = tokens[1:] if tokens[:2] == [bos, bos] else list(tokens)
    while tokens[-1:] == [eos]:
        tokens.pop()
    return [*tokens, eos]
