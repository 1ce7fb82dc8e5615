"""What tests in several folders ask for."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from leaves import load_leaf


@pytest.fixture
def load(monkeypatch):
    """Import a leaf of the templates as a project does: those that are loaded after it find it under its name."""

    def load_named(leaf: str, name: str | None = None) -> ModuleType:
        module = load_leaf(leaf, name)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return load_named
