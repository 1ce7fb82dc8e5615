"""The data: texts, as one stream of tokens cut into sequences of equal length."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
COLUMNS = Features({"text": Value("string")})


def load_texts(config: dict) -> Dataset:
    """The usable rows of all files. A file that changed is read again, not taken from the cache."""
    path = HERE / config["data"]
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    if not all(file.is_file() for file in files):
        sys.exit(f"{path}: no such file")
    stamps = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return Dataset.from_generator(
        examples,
        features=COLUMNS,
        gen_kwargs={"files": files, "stamps": stamps, "config": config},
    )


def examples(files: list[Path], stamps: list, config: dict) -> Iterator[dict]:
    """What training needs of each row. A bad row ends the run, or is counted and left out (skip_bad in config.yaml)."""
    usable = skipped = 0
    for file in files:
        for number, row in rows(file):
            try:
                found = example(row)
            except ValueError as error:
                if not config["skip_bad"]:
                    sys.exit(f"{file}, row {number}: {error}. Mend it, or set skip_bad: true in config.yaml.")
                skipped += 1
            else:
                usable += 1
                yield found
    if skipped:
        print(f"skipped {skipped} bad rows")
    if not usable:
        sys.exit(f"{config['data']}: no usable text")


def rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the file, numbered."""
    with file.open("rb") as lines:
        yield from enumerate(lines, start=1)


def example(line: bytes) -> dict:
    return {"text": line.decode("utf-8-sig").replace("\r\n", "\n")}


def train_tokenizer(texts: Iterable[str], folder: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learnt from the texts; kept in the run's folder, for a resumed run needs the same."""
    if not folder.exists():
        end = "<|endoftext|>"
        bpe = Tokenizer(BPE())
        bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
        bpe.decoder = ByteLevelDecoder()
        trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=[end], initial_alphabet=ByteLevel.alphabet())
        bpe.train_from_iterator(texts, trainer)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end, pad_token=end)
        draft = folder.with_name("tokenizer.tmp")
        tokenizer.save_pretrained(draft)
        draft.rename(folder)  # whole or not at all
    return PreTrainedTokenizerFast.from_pretrained(folder)


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
        sys.exit(
            f"{len(dataset)} sequences are fewer than one global batch of {batch} "
            f"({args.train_batch_size} x {accumulated} accumulated x {processes} processes): "
            "add data, or give a smaller --gradient_accumulation_steps."
        )
