"""The data: examples in the form that SFTTrainer takes."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer

from chat_template import ensure_chat_template
from config_file import read_config
from examples import make_example
from first_example import dump_example, show_example, show_lengths, warn_of_open_end
from labels import tokenize_batch
from masking import mask_messages
from open_data import count_lines, list_spans
from parts import BATCH, Batches, cut_rows, group_pieces, load_parts, prepare_parts
from rows import UNREADABLE, parse_row, read_rows
from sources import find_source
from template_limits import check_template
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
IS_FIRST = os.environ.get("RANK", "0") == "0"
"""Of the processes that train: the others say nothing of what all of them read."""
TURN = {"role": Value("string"), "content": Value("string"), "further": Value("string")}
COLUMNS = Features({"messages": List(TURN), "tools": Value("string"), "chat_template_kwargs": Value("string")})
MADE_BY = ("data", "parts", "open_data", "rows", "fields", "examples", "token_edges", "labels")
"""The modules that make examples of rows, and parts of files, which are kept: see parts.py."""


def hash_code() -> str:
    """Part of the key under which examples are kept: an edit of the code makes them again."""
    return hashlib.sha256(b"".join((HERE / f"{name}.py").read_bytes() for name in MADE_BY)).hexdigest()


def list_files(path: Path) -> list[Path]:
    """The file, or those of a folder or a pattern; not hidden ones, nor what `datasets` writes beside the rows."""
    if "*" in path.name:
        return sorted(path.parent.glob(path.name))
    if not path.is_dir():
        return [path]
    endings = (".jsonl",)
    beside = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
    files = [file for file in path.rglob("*") if file.name.lower().endswith(endings) and file.name not in beside]
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(path).parts))


def load_examples(config: dict) -> Dataset:
    """The usable rows of all files. A file that changed is read again, not taken from the cache."""
    files = list_files(Path(find_source(config, "data")))
    for file in files:
        if not file.is_file():
            sys.exit(f"{file}: no such file{f', but a link to {file.readlink()}' if file.is_symlink() else ''}")
    stamps = {str(file): stamp_file(file) for file in files}
    pieces = [((file, span), size) for file in files for span, size in list_spans(file)]
    parts, sizes = group_pieces([piece for piece, _ in pieces], [size for _, size in pieces])

    def read_part(part: list) -> Batches:
        skipped = 0
        for file, span in part:
            skipped += yield from make_examples(read_file(file, span), config, partial(name_row, file, span[0]))
            end_if_written(file, stamps[str(file)])
        return skipped

    return keep_examples(parts, sizes, read_part, config, stamps)


def stamp_file(file: Path) -> tuple[int, int]:
    """What changes when a file is written to."""
    state = file.stat()
    return state.st_size, state.st_mtime_ns


def end_if_written(file: Path, stamp: tuple[int, int]) -> None:
    """Or rows of another file, or of half of one, would be kept as those of the one that was there at the beginning."""
    if not file.is_file() or stamp_file(file) != stamp:
        sys.exit(f"{file} was written to while it was read: run again when it is complete")


def name_row(file: Path, start: int, number: int) -> str:
    """The row, by its number in the file, not behind the place in bytes at which the reading started."""
    return f"{file}, row {count_lines(file, start) + number}"


def read_file(file: Path, span: tuple[int, int]) -> Iterator[tuple]:
    """Its rows in the span, numbered. One line for a file that is damaged, or gone since it was listed."""
    try:
        yield from read_rows(file, span)
    except UNREADABLE as error:
        sys.exit(f"{file} cannot be read: {' '.join(str(error).split())}")


def make_examples(
    rows: Iterator[tuple], config: dict, name: Callable[[int], str]
) -> Generator[pa.RecordBatch, None, int]:
    """What training needs of each row. A bad row ends the run, or is counted and left out (skip_bad in config.yaml)."""
    examples: list[dict] = []
    skipped = 0
    for number, row in rows:
        try:
            examples.append(make_example(parse_row(row), config["columns"]))
        except ValueError as error:
            if not config["skip_bad"]:
                sys.exit(f"{name(number)}: {error}. Mend it, or set skip_bad: true in config.yaml.")
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


TOKENIZED = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "learned": Value("int32"),
        "full_length": Value("int32"),
        "left_out_turns": Value("int32"),
        "left_out_words": Value("bool"),
    }
)


EXAMPLES = 100
"""That are read at once."""
CHARACTERS = 1_000_000
"""That are tokenized at once, where no example is longer: each takes 50 bytes until its tokens are written."""


def group_examples(examples: Dataset, rows: range) -> Iterator[list[dict]]:
    """Neighbours that are tokenized together."""
    group: list[dict] = []
    length = 0
    for start in rows[::EXAMPLES]:
        for example in examples.select(range(start, min(start + EXAMPLES, rows.stop))).to_list():
            size = len(str(example))
            if group and (len(group) == BATCH or length + size > CHARACTERS):
                yield group
                group, length = [], 0
            group.append(example)
            length += size
    if group:
        yield group


def tokenize_examples(
    examples: Dataset, tokenizer, seq_len: int, loss_on: str, skip_bad: bool = False, *, may_be_empty: bool = False
) -> Dataset:
    """Token ids and labels, cut at ``seq_len``; examples with nothing to learn until there are left out."""
    check_template(tokenizer)

    parts, sizes = cut_rows(examples)

    def tokenize(rows: range) -> Batches:
        first = rows.start
        for group in group_examples(examples, rows):
            tokenized = tokenize_batch(group, tokenizer, loss_on)
            cut = [cut_tokens(index, example) for index, example in enumerate(tokenized, start=first)]
            yield pa.RecordBatch.from_pylist(cut, TOKENIZED.arrow_schema)
            first += len(group)

    def cut_tokens(index: int, tokenized: dict | ValueError) -> dict:
        if isinstance(tokenized, ValueError):
            if not skip_bad:
                sys.exit(f"example {index + 1}: {tokenized}. Mend it, or set skip_bad: true in config.yaml.")
            tokenized = {"input_ids": [], "labels": [], "left_out_turns": 0, "left_out_words": False}
        ids, labels = tokenized["input_ids"][:seq_len], tokenized["labels"][:seq_len]
        learned = len(labels) - labels.count(-100)
        full_length = len(tokenized["input_ids"])
        return {**tokenized, "input_ids": ids, "labels": labels, "learned": learned, "full_length": full_length}

    key = Hasher.hash([examples._fingerprint, tokenizer, seq_len, loss_on, skip_bad, hash_code()])
    files, _ = prepare_parts(parts, sizes, tokenize, TOKENIZED.arrow_schema, key, "Tokenizing")
    dataset = load_parts(files)
    refused = pc.sum(pc.equal(dataset.data["full_length"], 0)).as_py()
    if refused and IS_FIRST:
        print(f"{refused} examples cannot be written as the model reads them: left out (skip_bad in config.yaml)")
    longest = pc.max(dataset.data["full_length"]).as_py()
    dataset = dataset.select(np.flatnonzero(dataset.data["learned"]))
    if not len(dataset) and not may_be_empty:
        if longest <= seq_len:
            sys.exit("no trainable token: the rows, or the chat template, leave every turn of the assistant out")
        sys.exit(f"no trainable token: in no example does the answer begin within {seq_len} tokens")
    return dataset


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


def show_data(dataset: Dataset, examples: Dataset, tokenizer, seq_len: int, folder: Path) -> None:
    """The first example, its learned tokens marked, and what all are."""
    show_example(dataset[0], tokenizer, folder)
    warn_of_open_end(dataset[0], tokenizer)
    show_lengths(dataset, len(examples), seq_len)


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
    ensure_chat_template(tokenizer)
    dataset = tokenize_examples(examples, tokenizer, config["seq_len"], config["loss_on"], config["skip_bad"])
    show_data(dataset, examples, tokenizer, config["seq_len"], output_dir)
    return dataset[0], tokenizer


if __name__ == "__main__":
    mask_messages()
    main()
