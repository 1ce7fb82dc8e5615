"""The data: examples in the form that SFTTrainer takes."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from datasets import Dataset, Features, List, Value
from transformers import AutoTokenizer

from chat_template import ensure_chat_template
from examples import make_example
from first_example import show_example, show_lengths, warn_of_open_end
from labels import tokenize_example
from masking import mask_messages
from rows import UNREADABLE, parse_row, read_rows
from sources import find_source
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
TURN = {"role": Value("string"), "content": Value("string"), "further": Value("string")}
COLUMNS = Features({"messages": List(TURN), "tools": Value("string")})
MADE_BY = ("data", "open_data", "rows", "fields", "examples", "labels")
"""The modules that make examples of rows. `datasets` keeps what they made, and does not look at their code."""


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
    stamps = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return Dataset.from_generator(
        generate_examples,
        features=COLUMNS,
        gen_kwargs={"files": files, "stamps": stamps, "code": hash_code(), "config": config},
    )


def generate_examples(files: list[Path], stamps: list, code: str, config: dict) -> Iterator[dict]:
    """What training needs of each row. A bad row ends the run, or is counted and left out (skip_bad in config.yaml)."""
    usable = skipped = 0
    for file in files:
        for number, row in read_file(file):
            try:
                example = make_example(parse_row(row), config["columns"])
            except ValueError as error:
                if not config["skip_bad"]:
                    sys.exit(f"{file}, row {number}: {error}. Mend it, or set skip_bad: true in config.yaml.")
                skipped += 1
            else:
                usable += 1
                yield example
    if skipped:
        print(f"skipped {skipped} bad rows")
    if not usable:
        sys.exit(f"{config['data']}: no usable text")


def read_file(file: Path) -> Iterator[tuple]:
    """Its rows, numbered. One line for a file that is damaged, or gone since it was listed."""
    try:
        yield from read_rows(file)
    except UNREADABLE as error:
        sys.exit(f"{file} cannot be read: {' '.join(str(error).split())}")


TOKENIZED = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "full_length": Value("int32"),
        "left_out_turns": Value("int32"),
        "left_out_thoughts": Value("bool"),
    }
)


def tokenize_examples(
    examples: Dataset, tokenizer, seq_len: int, loss_on: str, skip_bad: bool = False, *, may_be_empty: bool = False
) -> Dataset:
    """Token ids and labels, cut at ``seq_len``; examples with nothing to learn until there are left out."""

    def tokenize(example: dict, index: int) -> dict:
        try:
            tokenized: dict = tokenize_example(example, tokenizer, loss_on)
        except ValueError as error:
            if not skip_bad:
                sys.exit(f"example {index + 1}: {error}. Mend it, or set skip_bad: true in config.yaml.")
            tokenized = {"input_ids": [], "labels": [], "left_out_turns": 0, "left_out_thoughts": False}
        ids, labels = tokenized["input_ids"], tokenized["labels"]
        return {**tokenized, "input_ids": ids[:seq_len], "labels": labels[:seq_len], "full_length": len(ids)}

    dataset = examples.map(
        tokenize, with_indices=True, remove_columns=examples.column_names, features=TOKENIZED, desc="Tokenizing"
    )
    refused = dataset["full_length"][:].count(0)
    if refused:
        print(f"{refused} examples cannot be written as the model reads them: left out (skip_bad in config.yaml)")
    dataset = dataset.filter(has_labels, input_columns="labels", desc="Leaving out examples without a label")
    if not len(dataset) and not may_be_empty:
        sys.exit(f"no trainable token: in no example does the answer begin within {seq_len} tokens")
    return dataset


def has_labels(labels: list[int]) -> bool:
    return any(label != -100 for label in labels)


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


def show_data(dataset: Dataset, examples: Dataset, tokenizer, seq_len: int, folder: Path) -> None:
    """The first example, its learned tokens marked, and what all are."""
    show_example(dataset[0], tokenizer, folder)
    warn_of_open_end(dataset[0], tokenizer)
    show_lengths(dataset, len(examples), seq_len)


def main() -> None:
    """Show the data as it would be trained on. Nothing is trained."""
    parse_flags(argparse.ArgumentParser(description=main.__doc__))
    config = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
    output_dir = HERE / config["output_dir"]
    examples = load_examples(config)
    source = find_source(config, "model")
    tokenizer = AutoTokenizer.from_pretrained(source, revision=config["revision"], trust_remote_code=False)
    ensure_chat_template(tokenizer)
    dataset = tokenize_examples(examples, tokenizer, config["seq_len"], config["loss_on"], config["skip_bad"])
    show_data(dataset, examples, tokenizer, config["seq_len"], output_dir)


if __name__ == "__main__":
    mask_messages()
    main()
