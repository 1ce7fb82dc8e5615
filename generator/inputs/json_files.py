"""JSON that a user hands over: small, whole, text."""

from __future__ import annotations

import json
from pathlib import Path

from generator.errors import SourceError

MAX_JSON_BYTES = 64 << 20
"""The largest index of a published checkpoint is a few MiB: what is larger is no config."""


def read_json(path: Path, hint: str) -> object:
    """The parsed content of a small JSON file. Raises ``SourceError``."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
            raise SourceError(f"{path} is no file of at most {MAX_JSON_BYTES >> 20} MiB", hint)
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, ensure_ascii=False).encode()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", hint) from error
    except UnicodeEncodeError as error:
        raise SourceError(f"{path} holds half a surrogate pair, which no file can hold", hint) from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}", hint) from error
    return content
