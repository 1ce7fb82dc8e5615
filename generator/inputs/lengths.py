"""How many tokens the examples have: counted with the model's own tokenizer where it is at hand, else from characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from generator.inputs.data_files import CHARACTERS_A_TOKEN, DataSource, list_data_files
from generator.inputs.data_formats import Format
from generator.inputs.data_readers import READERS, Lengths, sample_texts
from generator.inputs.hub_files import find_cached_file
from generator.inputs.leaves import load_make_example
from generator.inputs.model_source import ModelSource

COUNTED_ROWS = 500
COUNTED_CHARACTERS = 1_000_000
"""What is tokenized at most: a tenth of a second; the rows' lengths in characters are all known."""
TOKENS_PER_CONVERSATION = 25
"""What a chat template may put before the first message where there is no system message: Qwen2.5's default system turn, Llama
3.1's dates (assumed; what it puts around each message is in the lengths already)."""
ROLES = frozenset({"role"})
"""Keys of a message that hold who speaks, not what is said."""


def count_lengths(data: DataSource, source: ModelSource, tokenizer: str | None) -> DataSource:
    """The lengths in tokens of the model's own tokenizer, or of ``tokenizer``, where its file and the library are here; else
    from characters. Conversations are counted with what a chat template adds."""
    texts = () if data.format == "hub" else read_sample(data)
    if not texts:
        return data
    path = find_tokenizer_file(source, tokenizer)
    per_token = measure_characters_per_token(path, texts) if path else None
    added = TOKENS_PER_CONVERSATION if data.sft_format == "messages" else 0.0
    scale = CHARACTERS_A_TOKEN / (per_token or CHARACTERS_A_TOKEN)
    lengths = replace(
        data,
        token_quantiles=tuple(round(n * scale + added, 1) for n in data.token_quantiles),
        tokens=None if data.tokens is None else round(data.tokens * scale + added * (data.rows or 0)),
    )
    if per_token is None:
        return lengths
    words = f"{per_token:.2g} characters a token, counted with the tokenizer on {len(texts)} examples"
    return replace(lengths, length_source=words, lengths_counted=True)


def find_tokenizer_file(source: ModelSource, tokenizer: str | None) -> Path | None:
    """tokenizer.json of a folder or of the local hub cache; nothing is downloaded for it."""
    place = tokenizer or source.tokenizer or source.path
    folder = Path(place)
    if folder.is_dir():
        path = folder / "tokenizer.json"
        return path if path.is_file() else None
    if tokenizer is None and source.kind != "hub":
        return None
    cached = find_cached_file(place, "tokenizer.json")
    return cached if isinstance(cached, Path) else None


def measure_characters_per_token(tokenizer: Path, texts: tuple[str, ...]) -> float | None:
    """Characters of ``texts`` by their tokens; ``None`` without the library, a readable file or any token."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        counter = Tokenizer.from_file(str(tokenizer))
    except Exception:  # tokenizers raises bare Exception for a file that it cannot read
        return None
    counter.no_truncation()
    counter.no_padding()
    tokens = sum(len(encoding.ids) for encoding in counter.encode_batch(list(texts), add_special_tokens=False))
    return sum(map(len, texts)) / tokens if tokens else None


def read_sample(data: DataSource) -> tuple[str, ...]:
    """The texts of the first examples."""
    files = list_data_files(Path(data.path))
    if data.recognised is None:
        lines = (line for _, line in sample_texts(files, Lengths()) if isinstance(line, bytes))
        texts = (line.decode("utf-8-sig", errors="replace") for line in lines)
    else:
        rows = (row for _, row in READERS[data.format](files, Lengths()) if isinstance(row, dict))
        texts = ("\n".join(list_texts(example)) for example in make_examples(rows, data.recognised))
    kept, left = [], COUNTED_CHARACTERS
    for text in islice(filter(str.strip, texts), COUNTED_ROWS):
        kept.append(text)
        left -= len(text)
        if left < 0:
            break
    return tuple(kept)


def make_examples(rows: Iterable[dict[str, Any]], recognised: Format) -> Iterator[dict[str, Any]]:
    """What is trained on of each usable row, without its label."""
    make_example, column_of = load_make_example(recognised.leaf), recognised.column_of
    for row in rows:
        with suppress(ValueError):
            yield {name: value for name, value in make_example(row, column_of).items() if name != "label"}


def list_texts(value: Any) -> Iterator[str]:
    """Every text in a row, at any depth, without the roles of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ROLES:
                yield from list_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_texts(item)
