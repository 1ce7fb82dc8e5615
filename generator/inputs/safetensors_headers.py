"""Checkpoints by their headers: every shard there, none cut short."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from generator.errors import SourceError, quote_error
from generator.inputs.json_files import read_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What Transformers looks for, in this order (5.23, modeling_utils: _get_resolved_checkpoint_files)."""
SHARD = re.compile(r"model-[0-9]+-of-[0-9]+\.safetensors")


def check_weights(folder: Path, names: set[str], named: object = None) -> int | None:
    """Bytes of all shards, every header looked at; ``None`` without safetensors. ``named``: the file that the config names in the
    place of the usual ones. Raises ``SourceError``, also for files that Transformers would pass over.
    """
    wanted = find_weights(names, named)
    if wanted is None:
        refuse_unread(str(folder), names)
        return None
    if Path(wanted).name != wanted:
        raise SourceError(f"{folder} names weights outside its folder: {wanted!r}", "do not use this checkpoint")
    shards = list_indexed_shards(folder / wanted) if wanted.endswith(".index.json") else [wanted]
    return sum(check_shard(folder / name) for name in shards)


def find_weights(names: Collection[str], named: object = None) -> str | None:
    """The file among ``names`` that Transformers begins to load with, or the one that the config names."""
    if isinstance(named, str) and named:
        return named
    return next((name for name in (WHOLE, INDEX) if name in names), None)


def refuse_unread(where: str, names: Collection[str]) -> None:
    """Raises ``SourceError`` for safetensors that Transformers does not look for."""
    others = sorted(name for name in names if name.endswith(".safetensors") and not name.startswith("adapter"))
    if not others:
        return
    sharded = any(map(SHARD.fullmatch, others))
    raise SourceError(
        f"{where} has neither {WHOLE} nor {INDEX}, only {', '.join(others[:3])}",
        f"download {INDEX} too, and every shard that it names: nothing else says whether all are there"
        if sharded
        else f"Transformers reads no other names: the file with the whole model must be called {WHOLE}",
    )


def list_indexed_shards(index: Path) -> list[str]:
    content = read_json(index, "download the checkpoint again")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{index} has no weight_map", "download the checkpoint again")
    shards = sorted(set(map(str, weight_map.values())))
    for name in shards:
        if Path(name).name != name:
            raise SourceError(f"{index} names a shard outside its folder: {name!r}", "do not use this checkpoint")
        if not (index.parent / name).is_file():
            raise SourceError(f"{index} names {name}, which is missing", "download the missing file")
    return shards


def check_shard(path: Path) -> int:
    """Size in bytes; the header must be whole and agree with the file's length. Raises ``SourceError``."""
    from huggingface_hub import parse_local_safetensors_file_metadata
    from huggingface_hub.errors import SafetensorsParsingError

    if not path.is_file():
        raise SourceError(f"{path} is no regular file", "download it again")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
        length = int.from_bytes(start, "little") if len(start) == 8 else -1
        if not 0 < length <= size - 8:
            raise SourceError(f"{path} is no whole safetensors file ({size} bytes)", "download it again")
        tensors = parse_local_safetensors_file_metadata(path).tensors
        ends = [int(tensor.data_offsets[1]) for tensor in tensors.values()]
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "download it again") from error
    # the last six: what the library raises for a header that is JSON and yet none of safetensors
    except (
        SafetensorsParsingError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise SourceError(f"{path} has a broken header: {quote_error(error)}", "download it again") from error
    if not ends:
        raise SourceError(f"{path} has a broken header: it names no tensor", "download it again")
    if 8 + length + max(ends) != size:  # a download that broke off: the library reads the header only
        raise SourceError(f"{path} has {size} bytes, its header tells of {8 + length + max(ends)}", "download it again")
    return size
