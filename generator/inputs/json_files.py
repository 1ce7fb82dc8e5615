"""Small files, whole or not at all: JSON that a user hands over, and what perfgen writes over."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from generator.errors import SourceError

MAX_JSON_BYTES = 64 << 20
"""The largest index of a published checkpoint is a few MiB: what is larger is no config."""


MAX_DEPTH = 100
"""Of what perfgen's own programs write: a plan is 8 deep."""


def read_json(path: Path, hint: str, *, own: bool = False) -> object:
    """The parsed content of a small JSON file; ``own``: written by perfgen or its projects. Raises ``SourceError``."""
    try:
        if not path.exists():
            raise SourceError(f"there is no {path}", hint)
        if not is_small_file(path):
            raise SourceError(f"{path} is no file of at most {MAX_JSON_BYTES >> 20} MiB", hint)
        content = load_json(path, own=own)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", hint) from error
    except UnicodeEncodeError as error:
        raise SourceError(f"{path} holds half a surrogate pair, which no file can hold", hint) from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}", hint) from error
    return content


def is_small_file(path: Path) -> bool:
    """Not so a pipe or a device, which may never end."""
    return path.is_file() and path.stat().st_size <= MAX_JSON_BYTES


def load_json(path: Path, *, own: bool = False) -> object:
    """The parsed content of a small file. Raises ``OSError``, ``ValueError``, ``RecursionError``.

    ``own``: of what perfgen's programs write every number is finite, and nothing nests deeper than ``MAX_DEPTH``.
    """
    if path.exists() and not is_small_file(path):
        raise ValueError(f"it is no file of at most {MAX_JSON_BYTES >> 20} MiB")
    text = path.read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=refuse_constant, parse_float=read_finite) if own else json.loads(text)
    json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair: ValueError
    if own and is_deep(content, MAX_DEPTH):
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
    return content


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no finite number")


def read_finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else refuse_constant(text)


def is_deep(content: object, levels: int) -> bool:
    if not isinstance(content, (dict, list)):
        return False
    items = content.values() if isinstance(content, dict) else content
    return levels == 0 or any(is_deep(item, levels - 1) for item in items)


def replace_file(path: Path, text: str) -> None:
    """``text`` in the place of the file ``path``, at once: a reader, and a failure, leave the old content or the new.

    Raises ``OSError`` with ``path``, ``UnicodeEncodeError``.
    """
    content = text.encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process that had our pid, or a stranger's link
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
