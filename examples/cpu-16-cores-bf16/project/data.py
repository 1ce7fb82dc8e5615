"""The data: texts, as one stream of tokens cut into sequences of equal length."""

import sys
from collections.abc import Iterator

import pyarrow as pa
from datasets import Dataset, Features, List, Value, load_dataset
from torch.utils.data import Dataset as TorchDataset

COLUMNS = Features({"text": Value("string")})


def load_texts(config: dict) -> Dataset:
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
            example = make_example(row, config["text_column"])
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


def make_example(row: dict, text_column: str) -> dict:
    """The columns of one row; ValueError says what is wrong with it."""
    return {"text": read_text(row, text_column)}


def read_text(row: dict, column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"no usable text in column {column!r} of {', '.join(map(str, row))}")
    text.encode()  # half a surrogate pair or undecodable bytes: ValueError
    return text


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
    """Tokenize the texts, put the end-of-text token after each, and cut."""

    def tokenize(batch: dict) -> dict:
        sequences = tokenizer(batch["text"], add_special_tokens=False, verbose=False)["input_ids"]
        return {"input_ids": [[*tokens, tokenizer.eos_token_id] for tokens in sequences]}

    tokens = Features({"input_ids": List(Value("int32"))})
    texts = texts.map(tokenize, batched=True, remove_columns="text", features=tokens, desc="Tokenizing")
    chunks = [chunk.flatten() for chunk in texts.data.column("input_ids").chunks]
    return Blocks(pa.chunked_array(chunks), seq_len)


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
