"""Technique files that a test adds to those of the repository, as a stranger would: a file in the folder of an axis."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from generator.techniques.base import PACKAGE, list_axes, list_providers


@contextmanager
def added_files(folder: Path, sources: Mapping[str, str]) -> Iterator[None]:
    """``sources`` by path below generator/techniques: found there by import, until the end of the block."""
    modules = {path: f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}" for path in sources}
    packages = {path: importlib.import_module(name.rsplit(".", 1)[0]) for path, name in modules.items()}
    for path, source in sources.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source, encoding="utf-8")
        packages[path].__path__.append(str((folder / path).parent))
    forget()
    try:
        yield
    finally:
        for path, name in modules.items():
            packages[path].__path__.remove(str((folder / path).parent))
            sys.modules.pop(name, None)
        forget()


def forget() -> None:
    """What was found by import is found anew."""
    importlib.invalidate_caches()
    list_axes.cache_clear()
    list_providers.cache_clear()
