"""How many tokens the examples have: counted with the model's own tokenizer where it is at hand, else from characters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from generator.inputs.data_files import CHARACTERS_A_TOKEN, DataSource, list_data_files
from generator.inputs.data_readers import READERS, Lengths
from generator.inputs.model_source import ModelSource

COUNTED_ROWS = 500
COUNTED_CHARACTERS = 1_000_000
"""What is tokenized at most: a tenth of a second; the rows' lengths in characters are all known."""
TOKENS_PER_MESSAGE = 5
"""What a chat template adds to a message (counted: ChatML `<|im_start|>user\\n … <|im_end|>\\n`, Llama 3
`<|start_header_id|>user<|end_header_id|>\\n\\n … <|eot_id|>`)."""
TOKENS_PER_CONVERSATION = 25
"""What it puts before the first message where there is no system message (counted: the default system turn of Qwen2.5, 20; the
dates of Llama 3.1, 25)."""
ROLES = frozenset({"role", "from"})
"""Keys of a message that hold who speaks, not what is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Rows as their texts; ``messages`` is how many a row has on average (0: not a conversation)."""

    texts: tuple[str, ...]
    messages: float


def count_lengths(data: DataSource, source: ModelSource, tokenizer: str | None) -> DataSource:
    """The lengths in tokens of the model's own tokenizer, or of ``tokenizer``, where its file and the library are here; else
    from characters. Conversations are counted with what a chat template adds."""
    sample = None if data.format == "hub" else read_sample(data)
    if sample is None:
        return data
    path = find_tokenizer_file(source, tokenizer)
    per_token = measure_characters_per_token(path, sample.texts) if path else None
    turns = max(sample.messages, 2.0 if data.sft_format == "prompt_completion" else 0.0)
    added = TOKENS_PER_CONVERSATION + TOKENS_PER_MESSAGE * turns if turns else 0.0
    scale = CHARACTERS_A_TOKEN / (per_token or CHARACTERS_A_TOKEN)
    lengths = replace(
        data,
        token_quantiles=tuple(round(n * scale + added, 1) for n in data.token_quantiles),
        tokens=None if data.tokens is None else round(data.tokens * scale + added * (data.rows or 0)),
    )
    if per_token is None:
        return lengths
    words = f"{per_token:.2g} characters a token, counted with the tokenizer on {len(sample.texts)} examples"
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
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(place, "tokenizer.json")
    except (OSError, ValueError):  # no hub id, or a damaged cache
        return None
    return Path(cached) if isinstance(cached, str) and Path(cached).is_file() else None


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


def read_sample(data: DataSource) -> Sample | None:
    """The texts of the first rows; ``None`` where there is none."""
    files = list_data_files(Path(data.path))
    if data.format == "txt":
        with files[0].open(encoding="utf-8-sig", errors="replace") as handle:
            text = handle.read(COUNTED_CHARACTERS // 4)
        return Sample(texts=(text,), messages=0.0) if text.strip() else None
    texts: list[str] = []
    messages, left = 0, COUNTED_CHARACTERS
    for _, row in islice(READERS[data.format](files, Lengths()), COUNTED_ROWS):
        if not isinstance(row, dict):
            continue
        parts = list(list_texts({k: v for k, v in row.items() if k != data.label_column}))
        messages += count_messages(row)
        texts.append("\n".join(parts))
        left -= len(texts[-1])
        if left < 0:
            break
    texts = [text for text in texts if text.strip()]
    return Sample(texts=tuple(texts), messages=messages / len(texts)) if texts else None


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


def count_messages(row: dict[str, Any]) -> int:
    lists = [value for value in row.values() if isinstance(value, list)]
    return sum(1 for items in lists for item in items if isinstance(item, dict) and ROLES & item.keys())
