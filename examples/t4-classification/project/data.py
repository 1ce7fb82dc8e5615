"""The data: texts and their labels, tokenized."""

import sys
from collections.abc import Iterator

from datasets import Dataset, Features, Value, load_dataset

COLUMNS = Features({"text": Value("string"), "label": Value("string")})


def load_examples(config: dict) -> Dataset:
    """The usable rows of the data set's train split."""
    source = load_dataset(config["data"], revision=config["data_revision"], split="train")
    return Dataset.from_generator(
        generate_examples,
        features=COLUMNS,
        gen_kwargs={"source": source, "config": config},
    )


def generate_examples(source: Dataset, config: dict) -> Iterator[dict]:
    """What training needs of each row. A bad row ends the run, or is counted and left out (skip_bad in config.yaml)."""
    usable = skipped = 0
    for number, row in enumerate(source, start=1):
        try:
            example = make_example(row, config["text_column"], config["label_column"])
        except ValueError as error:
            if not config["skip_bad"]:
                sys.exit(f"{config['data']}, row {number}: {error}. Or set skip_bad: true in config.yaml.")
            skipped += 1
        else:
            usable += 1
            yield example
    if skipped:
        print(f"skipped {skipped} bad rows")
    if not usable:
        sys.exit(f"{config['data']}: no usable text")


def make_example(row: dict, text_column: str, label_column: str) -> dict:
    """The columns of one row; ValueError says what is wrong with it."""
    label = row.get(label_column)
    if not isinstance(label, (str, int)) or label == "":
        raise ValueError(f"no label in column {label_column!r}, only {', '.join(map(str, row))}")
    return {"text": read_text(row, text_column), "label": str(label)}


def read_text(row: dict, column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"no usable text in column {column!r} of {', '.join(map(str, row))}")
    text.encode()  # half a surrogate pair or undecodable bytes: ValueError
    return text


def list_labels(examples: Dataset) -> list[str]:
    """The labels in order; numbers as numbers."""
    names = sorted(set(examples["label"]), key=lambda name: name.zfill(20) if name.isdigit() else name)
    if len(names) < 2:
        sys.exit(f"every example has the label {names[0]!r}: there is nothing to learn")
    return names


def tokenize(examples: Dataset, names: list[str], tokenizer, seq_len: int) -> Dataset:
    """Token ids, cut at ``seq_len``, and labels as numbers."""
    numbers = {name: number for number, name in enumerate(names)}

    def encode(batch: dict) -> dict:
        encoded = tokenizer(batch["text"], truncation=True, max_length=seq_len)
        return {**encoded, "labels": [numbers[name] for name in batch["label"]]}

    return examples.map(encode, batched=True, remove_columns=["text", "label"], desc="Tokenizing")


def check_size(dataset, args) -> None:
    """An optimizer step needs a global batch."""
    processes, accumulated = args.world_size, args.gradient_accumulation_steps
    batch = args.train_batch_size * accumulated * processes
    if len(dataset) < batch:
        sys.exit(
            f"{len(dataset)} sequences are fewer than one global batch of {batch} "
            f"({args.train_batch_size} x {accumulated} accumulated x {processes} processes): "
            "add data, or give a smaller --gradient_accumulation_steps."
        )
