"""What tests in several folders ask for."""

from __future__ import annotations

import os
import sys
from types import CodeType, ModuleType

import jinja2
import pytest
from leaves import FRAGMENTS, load_leaf

COMPILED: dict[tuple, CodeType] = {}

for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
    os.environ.pop(name, None)  # what tests start keeps compiled modules beside its scripts, as on a user's machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: of two processes that share a list none waits at its end for the other's minute, and a steal,
    which takes from the end, never divides tests that share what was trained."""
    items.sort(key=lambda item: item.get_closest_marker("core") is None)


@pytest.fixture(autouse=True, scope="session")
def compile_templates_once():
    """Copier has an environment of Jinja for each project, and each would compile every template anew: 0.8 CPU seconds."""
    compile_one = jinja2.Environment.compile

    def compile_once(environment, source, name=None, filename=None, raw=False, defer_init=False):
        if raw or name is None:  # a file's name, which Copier's extension for several files reads as it is compiled
            return compile_one(environment, source, name, filename, raw, defer_init)
        options = (environment.keep_trailing_newline, environment.trim_blocks, environment.block_start_string)
        key = (type(environment), options, source, name, defer_init)
        if key not in COMPILED:
            COMPILED[key] = compile_one(environment, source, name, filename, raw, defer_init)
        return COMPILED[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", compile_once)
        yield


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
