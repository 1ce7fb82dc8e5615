"""Tokens of texts, and the labels that are learned from: of a prompt with its completion the completion, else all."""

from itertools import takewhile


def tokenize_batch(examples: list[dict], tokenizer, loss_on: str) -> list[dict | ValueError]:
    """Token ids of each, and labels: -100 where nothing is learned. All are tokenized in one call."""
    prompts = [example.get("prompt", "") for example in examples]
    wholes = [
        prompt + example["completion"] if "completion" in example else example["text"]
        for prompt, example in zip(prompts, examples, strict=True)
    ]
    asked, tokens = (tokenizer(texts, verbose=False)["input_ids"] for texts in (prompts, wholes))
    parts = loss_on == "assistant"
    return [
        label_completion(end_once(first, tokenizer), end_once(whole, tokenizer), completes=bool(prompt) and parts)
        for prompt, first, whole in zip(prompts, asked, tokens, strict=True)
    ]


def label_completion(asked: list[int], tokens: list[int], *, completes: bool) -> dict:
    """A completion begins where both tokenizations part."""
    start = 1  # nothing predicts the first
    if completes:
        start = max(start, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, tokens, strict=False))))
    return {
        "input_ids": tokens,
        "labels": [-100] * start + tokens[start:],
        "left_out_turns": 0,
        "left_out_words": False,
    }


def end_once(tokens: list[int], tokenizer) -> list[int]:
    """One mark at the beginning, if the tokenizer writes any, and one at the end: the text may have them too."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokens = tokens[1:] if tokens[:2] == [bos, bos] else list(tokens)
    while tokens[-1:] == [eos]:
        tokens.pop()
    return [*tokens, eos]
