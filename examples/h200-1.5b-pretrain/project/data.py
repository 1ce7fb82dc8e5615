"""The data: texts, as one stream of tokens cut into sequences of equal length."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, Value, get_dataset_split_names, load_dataset
from datasets.fingerprint import Hasher
from torch.utils.data import Dataset as TorchDataset
from transformers import AutoTokenizer, TokenizersBackend

from config_file import read_config
from examples import make_example
from first_example import dump_example, show_example
from masking import mask_messages
from parts import BATCH, Batches, cut_rows, load_parts, prepare_parts
from sources import find_source
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
IS_FIRST = os.environ.get("RANK", "0") == "0"
"""Of the processes that train: the others say nothing of what all of them read."""
COLUMNS = Features({"text": Value("string")})
MADE_BY = ("data", "parts", "fields", "examples")
"""The modules that make examples of rows, and parts of files, which are kept: see parts.py."""


def hash_code() -> str:
    """Part of the key under which examples are kept: an edit of the code makes them again."""
    return hashlib.sha256(b"".join((HERE / f"{name}.py").read_bytes() for name in MADE_BY)).hexdigest()


def load_texts(config: dict) -> Dataset:
    """The usable rows of the data set's split."""
    split = config["data_split"] or choose_split(config)
    name = str(find_source(config, "data"))
    source = load_dataset(name, config["data_config"], revision=config["data_revision"], split=split)
    parts, sizes = cut_rows(source)

    def read_part(rows: range) -> Batches:
        numbered = enumerate(source.select(rows), start=rows.start + 1)
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
            if example := make_example(row, {"text": config["text_column"]}):
                examples.append(example)
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


def find_begin(tokenizer) -> int | None:
    """What the tokenizer begins a prompt with: a model that never saw a text begin so writes worse behind it (Gemma).

    None where that is the end token: the one before the text is enough.
    """
    bos = tokenizer.bos_token_id
    return bos if bos != tokenizer.eos_token_id and tokenizer("a")["input_ids"][:1] == [bos] else None


def mark_text(tokens: list[int], begin: int | None, end: int) -> list[int]:
    """With one mark at the beginning, where there is any, and one at the end: the text may have them too."""
    first = [] if begin is None or tokens[:1] == [begin] else [begin]
    return [*first, *tokens, *([] if tokens[-1:] == [end] else [end])]


def cut_blocks(texts: Dataset, tokenizer, seq_len: int) -> Blocks:
    """Tokenize the texts, mark where each begins and ends, and cut."""
    if tokenizer.eos_token_id is None:
        sys.exit("The tokenizer has no end token (eos_token) to put after a text: give one that has.")
    parts, sizes = cut_rows(texts)
    begin = find_begin(tokenizer)

    def tokenize(rows: range) -> Batches:
        for group in group_texts(texts, rows):
            encoded = encode_texts(tokenizer, group)
            tokens = [t for sequence in encoded for t in mark_text(sequence, begin, tokenizer.eos_token_id)]
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
    source = find_source(config, "model")
    tokenizer = AutoTokenizer.from_pretrained(source, revision=config["revision"], trust_remote_code=False)
    blocks = cut_blocks(texts, tokenizer, config["seq_len"])
    if not len(blocks):
        sys.exit(f"the texts are shorter than one sequence of {config['seq_len']} tokens")
    show_data(blocks, tokenizer, output_dir)
    return blocks[0], tokenizer


if __name__ == "__main__":
    mask_messages()
    main()
