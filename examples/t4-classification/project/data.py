"""The data: texts and their labels, tokenized."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, Value, get_dataset_split_names, load_dataset
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer

from class_names import name_labels
from config_file import read_config
from examples import make_example
from first_example import dump_example, show_example
from masking import mask_messages
from parts import BATCH, Batches, count_cores, cut_rows, load_parts, prepare_parts
from sources import find_source
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
IS_FIRST = os.environ.get("RANK", "0") == "0"
"""Of the processes that train: the others say nothing of what all of them read."""
COLUMNS = Features({"text": Value("string"), "label": Value("string")})
MADE_BY = ("data", "parts", "fields", "class_names", "examples")
"""The modules that make examples of rows, and parts of files, which are kept: see parts.py."""


def hash_code() -> str:
    """Part of the key under which examples are kept: an edit of the code makes them again."""
    return hashlib.sha256(b"".join((HERE / f"{name}.py").read_bytes() for name in MADE_BY)).hexdigest()


def load_examples(config: dict) -> Dataset:
    """The usable rows of the data set's split."""
    split = config["data_split"] or choose_split(config)
    name = str(find_source(config, "data"))
    source = load_dataset(name, config["data_config"], revision=config["data_revision"], split=split)
    label = source.features.get(config["label_column"])
    names = label.names if isinstance(label, ClassLabel) else None
    parts, sizes = cut_rows(source)

    def read_part(rows: range) -> Batches:
        numbered = enumerate(source.select(rows), start=rows.start + 1)
        numbered = name_labels(numbered, config["label_column"], names)
        return make_examples(numbered, config, lambda number: f"{config['data']}, row {number}")

    return keep_examples(parts, sizes, read_part, config, source._fingerprint)


def choose_split(config: dict) -> str:
    """The training split, or the only one there is."""
    name = str(find_source(config, "data"))
    try:
        splits = get_dataset_split_names(name, config["data_config"], revision=config["data_revision"])
    except ValueError as error:  # several configs, and none is the default
        sys.exit(f"{config['data']}, data_config in config.yaml: {error}")
    if "train" not in splits and len(splits) > 1:
        sys.exit(f"{config['data']} has the splits {', '.join(splits)}: name one in config.yaml (data_split).")
    return "train" if "train" in splits else splits[0]


def make_examples(
    rows: Iterator[tuple], config: dict, name: Callable[[int], str]
) -> Generator[pa.RecordBatch, None, int]:
    """What training needs of each row. A bad row ends the run, or is counted and left out (skip_bad in config.yaml)."""
    examples: list[dict] = []
    skipped = 0
    for number, row in rows:
        try:
            examples.append(make_example(row, {"text": config["text_column"], "label": config["label_column"]}))
        except ValueError as error:
            if not config["skip_bad"]:
                sys.exit(f"{name(number)}: {error}. Or set skip_bad: true in config.yaml.")
            skipped += 1
        if len(examples) == BATCH:
            yield pa.RecordBatch.from_pylist(examples, COLUMNS.arrow_schema)
            examples.clear()
    yield pa.RecordBatch.from_pylist(examples, COLUMNS.arrow_schema)
    return skipped


def keep_examples(parts: list, sizes: list[int], read_part: Callable, config: dict, source: object) -> Dataset:
    """The examples of all parts. What is kept of an earlier run is of the same source, columns and code."""
    columns = [config.get(name) for name in ("columns", "text_column", "label_column", "skip_bad")]
    key = Hasher.hash([source, columns, hash_code()])
    files, skipped = prepare_parts(parts, sizes, read_part, COLUMNS.arrow_schema, key, "Reading")
    if skipped and IS_FIRST:
        print(f"skipped {skipped} bad rows")
    examples = load_parts(files)
    if not len(examples):
        sys.exit(f"{config['data']}: no usable text")
    return examples


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

    processes = min(count_cores(), len(examples) // BATCH)
    return examples.map(
        encode, batched=True, remove_columns=["text", "label"], num_proc=processes or None, desc="Tokenizing"
    )


def check_size(dataset, args) -> None:
    """An optimizer step needs a global batch."""
    processes, accumulated = args.world_size, args.gradient_accumulation_steps
    batch = args.train_batch_size * accumulated * processes
    if len(dataset) < batch:
        smaller = "--gradient_accumulation_steps" if accumulated > 1 else "--per_device_train_batch_size"
        sys.exit(
            f"{len(dataset)} sequences are fewer than one global batch of {batch} "
            f"({args.train_batch_size} x {accumulated} accumulated x {processes} processes): "
            f"add data, or give a smaller {smaller}{' or fewer processes' if processes > 1 else ''}."
        )


def check_tokens(tokenizer, config, *datasets) -> None:
    """Every token needs an embedding: without, a device fails in an assertion that names nothing."""
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    embeddings = getattr(config.get_text_config(), "vocab_size", max(tokens) + 1)  # CANINE hashes characters
    if max(tokens) < embeddings:
        return
    highest = max(max(row["input_ids"], default=0) for rows in datasets if rows is not None for row in rows)
    highest = max(highest, tokenizer.pad_token_id or 0)
    if highest >= embeddings:
        sys.exit(
            f"the tokenizer writes {tokens.get(highest)!r} as token {highest}, and the model has embeddings for "
            f"{embeddings}: "
            "give the model's own tokenizer, or save the model after resize_token_embeddings(len(tokenizer))"
        )


def show_data(dataset: Dataset, names: list[str], tokenizer, seq_len: int, folder: Path) -> None:
    """The first example, and what all are."""
    first = dataset[0]
    print(f"the first label is {names[first['labels']]!r}")
    show_example({"input_ids": first["input_ids"], "labels": [-100] * len(first["input_ids"])}, tokenizer, folder)
    lengths = sorted(map(len, dataset["input_ids"]))
    full, median = sum(length == seq_len for length in lengths), lengths[len(lengths) // 2]
    print(f"{len(lengths)} texts of {lengths[0]} to {lengths[-1]} tokens, half of them up to {median}")
    print(f"{full} of them fill all {seq_len} tokens, and are cut there if they are longer")


def main() -> None:
    """Show the data as it would be trained on. Nothing is trained."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="the first example on standard output, nothing else")
    args = parse_flags(parser)
    with redirect_stdout(sys.stderr if args.json else sys.stdout):
        first, tokenizer = show_first()
    if args.json:
        print(dump_example(first, tokenizer))


def show_first():
    """The first example, and the tokenizer that made its tokens; both are shown, and what all examples are."""
    config = read_config()
    output_dir = HERE / config["output_dir"]
    examples = load_examples(config)
    source = find_source(config, "model")
    tokenizer = AutoTokenizer.from_pretrained(source, revision=config["revision"], trust_remote_code=False)
    names = list_labels(examples)
    dataset = tokenize(examples, names, tokenizer, config["seq_len"])
    show_data(dataset, names, tokenizer, config["seq_len"], output_dir)
    return dataset[0], tokenizer


if __name__ == "__main__":
    mask_messages()
    main()
