"""Reading files below a root folder: what both kinds of machine share."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

MAX_FILE_BYTES = 32 << 20  # the largest honest recording file (rocm-smi of eight boards) is under 1 MiB


def decode_text(raw: bytes) -> str:
    """Text of a reading: undecodable bytes replaced, NUL bytes (real ones are in /sys) dropped.

    PowerShell writes what it redirects as UTF-16, and some editors put a mark before UTF-8: with that mark in front, the first line of
    a recording was none that a parser knows.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", "replace").replace("\0", "")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    # Device-tree texts end in NUL; a NUL inside would cut later comparisons short without a trace.
    return raw.decode("utf-8", "replace").replace("\0", "")


class Folder:
    """Reading below a root folder, shared by both kinds of machine."""

    def __init__(self, root: Path):
        self.root = str(root)
        self._real: str | None = None

    def _path(self, path: str) -> str | None:
        return f"{self.root.rstrip('/')}/{path}"

    def read(self, path: str) -> str | None:
        """The whole text of a file, ``None`` if it cannot be read."""
        raw = self.read_bytes(path)
        return None if raw is None else decode_text(raw)

    def read_bytes(self, path: str) -> bytes | None:
        where = self._path(path)
        if where is None:
            return None
        try:
            # O_NONBLOCK: a FIFO or a device in the tree must not hold the reader.
            descriptor = os.open(where, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError):
            return None
        try:
            return _read_all(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty if there is none."""
        where = self._path(path)
        try:
            return tuple(sorted(os.listdir(where))) if where is not None else ()  # noqa: PTH208 (speed: many folders)
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        where = self._path(path)
        return where is not None and os.path.exists(where)  # noqa: PTH110

    def resolve_link(self, path: str) -> str | None:
        """Where a path really is, relative to the root; ``None`` if it is nowhere or leaves the root."""
        where = self._path(path)
        if where is None or not os.path.exists(where):  # noqa: PTH110
            return None
        real = os.path.realpath(where)
        root = self._real_root()
        return real[len(root) :].lstrip("/") if real.startswith(root) else None

    def _real_root(self) -> str:
        if self._real is None:
            self._real = os.path.realpath(self.root)
        return self._real


def _read_all(descriptor: int) -> bytes:
    chunks, size = [], 0
    while size < MAX_FILE_BYTES:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)
