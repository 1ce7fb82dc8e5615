"""Tokens of texts, with the labels that are learned from: all of them."""


def tokenize_example(example: dict, tokenizer, loss_on: str) -> dict:
    """Token ids, the end of the text included, and their labels."""
    text = example["text"]
    end = "" if text.endswith(tokenizer.eos_token) else tokenizer.eos_token
    tokens = tokenizer(text + end, verbose=False)["input_ids"]
    return {
        "input_ids": tokens,
        "labels": [-100, *tokens[1:]],
        "left_out_turns": 0,
        "left_out_thoughts": False,
    }  # nothing predicts the first
