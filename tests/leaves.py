"""The leaves of templates/fragments as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FRAGMENTS = Path(__file__).resolve().parents[1] / "templates" / "fragments"


def load_leaf(leaf: str, name: str | None = None) -> ModuleType:
    """A leaf under the name that it has in a project; others do not find it there (the fixture ``load`` sees to that).
    All find the one by which they hide secrets."""
    if leaf != "masking":
        sys.modules.setdefault("masking", load_leaf("masking"))
    spec = importlib.util.spec_from_file_location(name or leaf, FRAGMENTS / f"{leaf}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
