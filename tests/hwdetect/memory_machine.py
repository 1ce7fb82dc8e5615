"""A recording held in memory: paths and their bytes, no folder."""

from __future__ import annotations

from pathlib import Path

from hwdetect.machine.recorded import Recorded


class MemoryMachine(Recorded):
    def __init__(self, files: dict[str, bytes | str]):
        super().__init__(Path("/nonexistent"))
        self.files = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}

    def read_bytes(self, path: str) -> bytes | None:
        return self.files.get(path)

    def list_folder(self, path: str) -> tuple[str, ...]:
        inside = path.rstrip("/") + "/"
        return tuple(sorted({p[len(inside) :].split("/")[0] for p in self.files if p.startswith(inside)}))

    def exists(self, path: str) -> bool:
        return path in self.files or bool(self.list_folder(path))

    def resolve_link(self, path: str) -> str | None:
        return path if self.exists(path) else None
