"""The data: texts, as one stream of tokens cut into sequences of equal length."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import yaml
from datasets import Dataset, Features, List, Value
from torch.utils.data import Dataset as TorchDataset
from transformers import AutoConfig

from first_example import show_example
from rows import UNREADABLE, read_rows
from sources import find_source
from terminal import parse_flags
from tokenizer import train_tokenizer

HERE = Path(__file__).resolve().parent
COLUMNS = Features({"text": Value("string")})
MADE_BY = ("data", "open_data", "rows")
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
    endings = (".txt",)
    beside = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
    files = [file for file in path.rglob("*") if file.name.lower().endswith(endings) and file.name not in beside]
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(path).parts))


def load_texts(config: dict) -> Dataset:
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
                example = make_example(row)
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


def make_example(line: bytes) -> dict:
    return {"text": line.decode("utf-8-sig").replace("\r\n", "\n")}


class Blocks(TorchDataset):
    """Sequences of ``seq_len`` tokens, one after the other from one long stream that stays on disk."""

    def __init__(self, stream: pa.ChunkedArray, seq_len: int):
        self.stream, self.seq_len = stream, seq_len

    def __len__(self) -> int:
        return len(self.stream) // self.seq_len

    def __getitem__(self, index: int) -> dict:
        if index >= len(self):
            raise IndexError(index)
        tokens = self.stream.slice(index * self.seq_len, self.seq_len).to_pylist()
        return {"input_ids": tokens, "labels": tokens}


def cut_blocks(texts: Dataset, tokenizer, seq_len: int) -> Blocks:
    """Tokenize the lines as running text and cut it."""

    def tokenize(batch: dict) -> dict:
        text = "".join(batch["text"])
        return {"input_ids": [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]}

    tokens = Features({"input_ids": List(Value("int32"))})
    texts = texts.map(tokenize, batched=True, remove_columns="text", features=tokens, desc="Tokenizing")
    chunks = [chunk.flatten() for chunk in texts.data.column("input_ids").chunks]
    return Blocks(pa.chunked_array(chunks), seq_len)


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


def show_data(blocks: Blocks, tokenizer, folder: Path) -> None:
    """The first sequence, and how many there are."""
    show_example(blocks[0], tokenizer, folder)
    print(f"{len(blocks)} sequences of {len(blocks[0]['input_ids'])} tokens")


def main() -> None:
    """Show the data as it would be trained on. Nothing is trained."""
    parse_flags(argparse.ArgumentParser(description=main.__doc__))
    config = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
    output_dir = HERE / config["output_dir"]
    texts = load_texts(config)
    model = find_source(config, "model")
    vocab_size = AutoConfig.from_pretrained(model, trust_remote_code=False).vocab_size
    tokenizer = train_tokenizer(texts["text"], output_dir / "tokenizer", vocab_size)
    blocks = cut_blocks(texts, tokenizer, config["seq_len"])
    if not len(blocks):
        sys.exit(f"the texts are shorter than one sequence of {config['seq_len']} tokens")
    show_data(blocks, tokenizer, output_dir)


if __name__ == "__main__":
    main()
