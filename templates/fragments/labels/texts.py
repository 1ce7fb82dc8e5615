"""Tokens of texts, and the labels that are learned from: of a prompt with its completion the completion, else all."""

from token_edges import count_before


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
        label_completion(prompt if parts else "", first, whole, tokenizer)
        for prompt, first, whole in zip(prompts, asked, tokens, strict=True)
    ]


def label_completion(prompt: str, asked: list[int], tokens: list[int], tokenizer) -> dict:
    """``asked``: the tokens of the prompt alone. A completion begins with the first token that writes more than it."""
    asked, tokens = begin_once(asked, tokenizer), end_once(begin_once(tokens, tokenizer), tokenizer)
    start = 1  # nothing predicts the first
    if prompt:
        begun = len(asked[:1]) if asked[:1] == tokens[:1] == [tokenizer.bos_token_id] else 0
        part = prompt.removeprefix(tokenizer.bos_token or "") if begun else prompt
        start = max(start, begun + count_before(asked[begun:], tokens[begun:], part, tokenizer))
    return {
        "input_ids": tokens,
        "labels": [-100] * start + tokens[start:],
        "left_out_turns": 0,
        "left_out_words": False,
    }


def begin_once(tokens: list[int], tokenizer) -> list[int]:
    """One mark at the beginning, if the tokenizer writes any: the text may have it too."""
    bos = tokenizer.bos_token_id
    return tokens[1:] if tokens[:2] == [bos, bos] else tokens


def end_once(tokens: list[int], tokenizer) -> list[int]:
    """One mark at the end, where a text may have it too."""
    tokens, eos = list(tokens), tokenizer.eos_token_id
    while tokens[-1:] == [eos]:
        tokens.pop()
    return [*tokens, eos]
