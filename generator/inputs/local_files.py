"""Files and folders that a request names: where they lie, and how much there is to take along."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from generator.errors import SourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """``key`` of config.yaml; ``path`` is absolute, and a pattern where it stands for several files, which ``parts`` are.

    ``real`` is the path behind all links, ``named`` what the user wrote. ``files`` and ``bytes``: of all that is below.
    """

    key: str
    named: str
    path: str
    real: str
    parts: tuple[str, ...]
    files: int
    bytes: int


def describe_local_source(key: str, named: str, path: Path, parts: list[Path]) -> LocalSource:
    """``parts``: the files that ``path`` stands for, or the path itself. Raises ``SourceError`` for what cannot be listed."""
    try:
        sizes = [file.stat().st_size for part in parts for file in list_files(part)]
    except OSError as error:
        raise SourceError(f"{named}: {error.filename}: {error.strerror}", "give files that you may read") from error
    return LocalSource(
        key=key,
        named=named,
        path=str(path),
        real=str(path.resolve()),
        parts=tuple(str(part) for part in parts),
        files=len(sizes),
        bytes=sum(sizes),
    )


def list_files(path: Path) -> list[Path]:
    """All files below, as a copy that follows links takes them along; ``path`` itself where it is a file."""
    if not path.is_dir():
        return [path]
    below = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted(file for file in below if file.is_file())


def make_absolute(path: Path) -> Path:
    """Without ``..``, and without looking behind links after it, whose names may have the ending that says what a file is."""
    parts = path.parts
    upward = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    if upward:  # as the system reads it: of a link that is what is above the folder that it leads to
        return Path(*parts[:upward]).resolve().joinpath(*parts[upward:])
    return path.absolute() if path.name else path.resolve()


def expand_home(name: str | None) -> str | None:
    """``~`` is the home folder, as in a shell: in ``--data=~/x`` it leaves it as it is."""
    if name is None or not name.startswith("~") or os.path.lexists(name):
        return name
    try:
        return str(Path(name).expanduser())
    except RuntimeError:  # of a user that there is not
        return name
