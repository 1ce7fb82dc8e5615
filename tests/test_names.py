"""Names: functions are verbs, and words that name nothing do not come back."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("verbs", ROOT / "benchmarks" / "verbs.py")
verbs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verbs)
EMPTY = {"found", "told", "said"}
"""say nothing of what they hold"""


def list_names(path: Path) -> Iterator[str]:
    """Every identifier that a file defines or uses: variables, parameters, attributes, keywords, functions, classes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


@pytest.mark.parametrize("folder", ["generator", "hwdetect"])
def test_functions_begin_with_a_verb(folder):
    """At least as many as in httpx, pypa/build, structlog and openapi-python-client: 60 %."""
    assert verbs.measure_share(ROOT / folder) >= 0.6


def test_what_is_no_verb_is_not_counted():
    assert verbs.is_verb_first("_read_config") and verbs.is_verb_first("why_not_more_devices")
    assert not verbs.is_verb_first("quota") and not verbs.is_verb_first("alike")


@pytest.mark.parametrize("folder", ["generator", "hwdetect", "templates", "benchmarks"])
def test_words_that_name_nothing_are_gone(folder):
    files = [path for path in (ROOT / folder).rglob("*.py") if "_bundle" not in path.parts]
    assert files
    assert not {(str(path.relative_to(ROOT)), name) for path in files for name in list_names(path) if name in EMPTY}
