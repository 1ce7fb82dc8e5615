"""Checkpoints by their headers: every shard there, none cut short."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from generator.errors import SourceError
from generator.inputs.json_files import read_json

MAX_HEADER_BYTES = 100_000_000
"""safetensors' own limit for a header"""


def check_weights(folder: Path, names: set[str]) -> int | None:
    """Bytes of all shards, every header looked at; ``None`` without safetensors. Raises ``SourceError``."""
    if "model.safetensors.index.json" in names:
        shards = list_indexed_shards(folder / "model.safetensors.index.json")
    else:
        shards = sorted(name for name in names if name.endswith(".safetensors") and not name.startswith("adapter"))
    if not shards:
        return None
    return sum(check_shard(folder / name) for name in shards)


def list_indexed_shards(index: Path) -> list[str]:
    told = read_json(index, "download the checkpoint again")
    named = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(named, dict) or not named:
        raise SourceError(f"{index} has no weight_map", "download the checkpoint again")
    shards = sorted(set(map(str, named.values())))
    for name in shards:
        if Path(name).name != name:
            raise SourceError(f"{index} names a shard outside its folder: {name!r}", "do not use this checkpoint")
        if not (index.parent / name).is_file():
            raise SourceError(f"{index} names {name}, which is missing", "download the missing file")
    return shards


def check_shard(path: Path) -> int:
    """Size in bytes; the header must be whole and agree with the file's length."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
                raise SourceError(f"{path} is no whole safetensors file ({size} bytes)", "download it again")
            end = find_data_end(json.loads(file.read(length)))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "download it again") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path} has a broken header: {error}", "download it again") from error
    if 8 + length + end != size:
        raise SourceError(f"{path} has {size} bytes, its header tells of {8 + length + end}", "download it again")
    return size


def find_data_end(header: dict) -> int:
    """Where the last tensor ends, in bytes. Raises ``ValueError`` (or what a header of another form raises)."""
    ends = [int(told["data_offsets"][1]) for name, told in header.items() if name != "__metadata__"]
    if not ends:
        raise ValueError("it names no tensor")
    return max(ends)
