"""The first example as it is trained on, and what all are: before the first step, or by `python data.py`."""

import json
from itertools import groupby
from pathlib import Path

from terminal import escape_control

SHOWN = 4000
"""Characters of the example in a terminal; first_example.txt has all."""


def mark_learned(example: dict, tokenizer) -> str:
    """The text; what is learned from stands between » and «."""
    pairs = zip(example["input_ids"], example["labels"], strict=True)
    runs = [(learned, [token for token, _ in run]) for learned, run in groupby(pairs, key=lambda pair: pair[1] != -100)]
    texts = [(learned, tokenizer.decode(tokens)) for learned, tokens in runs]
    return "".join(f"»{text}«" if learned else text for learned, text in texts)


def list_tokens(example: dict, tokenizer) -> str:
    """A line a token: its id, whether it is learned, its text."""
    pairs = zip(example["input_ids"], example["labels"], strict=True)
    lines = [
        f"{token:>8}  {'learned' if label != -100 else '-':<7}  {tokenizer.decode([token])!r}" for token, label in pairs
    ]
    return "\n".join(["   token  label    text", *lines])


def show_example(example: dict, tokenizer, folder: Path) -> None:
    """In the terminal as text, in ``folder``/first_example.txt token by token."""
    tokens, learned = example["input_ids"], sum(label != -100 for label in example["labels"])
    title = f"first example: {len(tokens)} tokens" + (f", {learned} learned from (between » and «)" if learned else "")
    text = mark_learned(example, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    content = f"{title}\n\n{text}\n\n{list_tokens(example, tokenizer)}\n"
    (folder / "first_example.txt").write_text(content, encoding="utf-8", errors="backslashreplace")
    print(f"{title}\n{escape_control(text[:SHOWN])}{' …' if len(text) > SHOWN else ''}\n")


def dump_example(example: dict, tokenizer) -> str:
    """As JSON: its text, its tokens, and their labels (-100: not learned), or the number of its class."""
    tokens = example["input_ids"]
    return json.dumps({"text": tokenizer.decode(tokens), "input_ids": tokens, "labels": example["labels"]})


def warn_of_open_end(example: dict, tokenizer) -> None:
    """Say where the end of the assistant's turn is not learned: such a model does not know when to stop."""
    learned = [label for label in example["labels"] if label != -100]
    added = set(tokenizer.get_added_vocab().values())
    words = [token for token in learned if tokenizer.decode([token]).strip()]
    if words and words[-1] not in added and example["full_length"] == len(example["labels"]):
        print("the chat template ends the assistant's turn with no token of its own: nothing teaches the model to stop")


def show_lengths(dataset, examples: int, seq_len: int) -> None:
    """How many examples, how long they are, what is cut, and what share of the tokens is learned from."""
    lengths = sorted(dataset["full_length"][:])
    cut = sum(length > seq_len for length in lengths)
    tokens, learned = sum(min(length, seq_len) for length in lengths), sum(dataset["learned"][:])
    print(
        f"{len(lengths)} examples of {lengths[0]} to {lengths[-1]} tokens, half of them up to "
        f"{lengths[len(lengths) // 2]}; {learned / tokens:.0%} of the tokens are learned from"
    )
    if cut:
        print(f"{cut} examples ({cut / len(lengths):.1%}) are longer than {seq_len} tokens and are cut there")
    if len(lengths) < examples:
        print(f"{examples - len(lengths)} examples have nothing to learn within {seq_len} tokens: left out")
    turns = sum(dataset["left_out_turns"][:])
    if turns:
        print(
            f"{turns} turns of the assistant are not learned from: the chat template drops what they think once others "
            "follow, or writes other turns otherwise then"
        )
    incomplete = sum(dataset["left_out_words"][:])
    if incomplete:
        print(
            f"in {incomplete} examples the chat template leaves out what the assistant thinks, or says beside a tool "
            "call: it is not learned"
        )
