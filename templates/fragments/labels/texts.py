"""Tokens of texts, and the labels that are learned from: of a prompt with its completion the completion, else all."""

from itertools import takewhile


def tokenize_example(example: dict, tokenizer, loss_on: str) -> dict:
    """Token ids, and labels: -100 where nothing is learned. A completion begins where both tokenizations part."""
    prompt = example.get("prompt", "")
    text = prompt + example["completion"] if "completion" in example else example["text"]
    asked, tokens = (end_once(tokens, tokenizer) for tokens in tokenizer([prompt, text], verbose=False)["input_ids"])
    start = 1  # nothing predicts the first
    if prompt and loss_on == "assistant":
        start = max(start, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, tokens, strict=False))))
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
