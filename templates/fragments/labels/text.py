"""Tokens of texts, with the labels that are learned from: all of them."""


def tokenize_example(example: dict, tokenizer, loss_on: str) -> dict:
    """Token ids, the end of the text included, and their labels."""
    tokens = end_once(tokenizer(example["text"], verbose=False)["input_ids"], tokenizer)
    return {
        "input_ids": tokens,
        "labels": [-100, *tokens[1:]],
        "left_out_turns": 0,
        "left_out_thoughts": False,
    }  # nothing predicts the first


def end_once(tokens: list[int], tokenizer) -> list[int]:
    """One mark at the beginning, if the tokenizer writes any, and one at the end: the text may have them too."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokens = tokens[1:] if tokens[:2] == [bos, bos] else list(tokens)
    while tokens[-1:] == [eos]:
        tokens.pop()
    return [*tokens, eos]
