"""The data: texts, as one stream of tokens cut into sequences of equal length."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets.fingerprint import Hasher
from torch.utils.data import Dataset as TorchDataset
from transformers import AutoConfig, TokenizersBackend

from config_file import read_config
from first_example import dump_example, show_example
from open_data import count_lines, list_spans
from parts import BATCH, Batches, cut_rows, group_pieces, load_parts, prepare_parts
from rows import UNREADABLE, read_rows
from sources import find_source
from terminal import parse_flags
from tokenizer import train_tokenizer

HERE = Path(__file__).resolve().parent
IS_FIRST = os.environ.get("RANK", "0") == "0"
"""Of the processes that train: the others say nothing of what all of them read."""
COLUMNS = Features({"text": Value("string")})
MADE_BY = ("data", "parts", "open_data", "rows")
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
            examples.append(make_example(row))
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


def make_example(line: bytes) -> dict:
    return {"text": line.decode().removeprefix("\ufeff").replace("\r\n", "\n")}


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


TOKENS = pa.schema({"input_ids": pa.int32()})
TEXTS = 100
"""That are read at once."""
CHARACTERS = 1_000_000
"""That are tokenized at once, where no text is longer: each takes 50 bytes of memory until its tokens are written."""


def group_texts(texts: Dataset, rows: range) -> Iterator[list[str]]:
    """Neighbours that are tokenized together."""
    group: list[str] = []
    length = 0
    for start in rows[::TEXTS]:
        for text in texts[start : min(start + TEXTS, rows.stop)]["text"]:
            if group and (len(group) == BATCH or length + len(text) > CHARACTERS):
                yield group
                group, length = [], 0
            group.append(text)
            length += len(text)
    yield group


def encode_texts(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids alone: to find where in its text each token stands takes a tenth of the time."""
    methods = ("__call__", "_encode_plus")
    if any(getattr(type(tokenizer), name) is not getattr(TokenizersBackend, name, None) for name in methods):
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return encoded["input_ids"]
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # tokenizer.json may ask for either
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def cut_blocks(texts: Dataset, tokenizer, seq_len: int) -> Blocks:
    """Tokenize the lines as running text and cut it."""
    parts, sizes = cut_rows(texts, BATCH)

    def tokenize(rows: range) -> Batches:
        for lines in group_texts(texts, rows):
            (tokens,) = encode_texts(tokenizer, ["".join(lines)])
            yield pa.record_batch([pa.array(tokens, pa.int32())], TOKENS)

    key = Hasher.hash([texts._fingerprint, tokenizer, hash_code()])
    files, _ = prepare_parts(parts, sizes, tokenize, TOKENS, key, "Tokenizing")
    return Blocks(load_parts(files).data.column("input_ids"), seq_len)


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
    texts = load_texts(config)
    model = find_source(config, "model")
    vocab_size = AutoConfig.from_pretrained(model, trust_remote_code=False).vocab_size
    tokenizer = train_tokenizer(texts["text"], output_dir / "tokenizer", vocab_size)
    blocks = cut_blocks(texts, tokenizer, config["seq_len"])
    if not len(blocks):
        sys.exit(f"the texts are shorter than one sequence of {config['seq_len']} tokens")
    show_data(blocks, tokenizer, output_dir)
    return blocks[0], tokenizer


if __name__ == "__main__":
    main()
