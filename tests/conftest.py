"""What tests in several folders ask for."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from leaves import FRAGMENTS, load_leaf


@pytest.fixture
def load(monkeypatch):
    """Import a leaf of the templates as a project does: it finds the others under their names, and so do those after it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FRAGMENTS))

    def load_named(leaf: str, name: str | None = None) -> ModuleType:
        module = load_leaf(leaf, name)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    load_named("masking")  # by which others hide what they print
    yield load_named
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(FRAGMENTS)):
            del sys.modules[name]
