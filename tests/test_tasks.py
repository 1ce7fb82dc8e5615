"""The table of tasks: what a row says exists, and nothing outside of it knows what only one of them is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from generator.case.tasks import list_tasks

ROOT = Path(__file__).resolve().parents[1]
FRAGMENTS = ROOT / "templates" / "fragments"
ROW_TASKS = [name for name, task in list_tasks().items() if not task.writes and not task.trained]


def test_a_task_is_a_file_of_its_name():
    files = {path.stem for path in (ROOT / "generator" / "case" / "tasks").glob("*.py")} - {"__init__", "task", "text"}
    assert {name.replace("-", "_") for name in list_tasks()} == files


@pytest.mark.parametrize("name", list_tasks())
def test_what_a_row_names_is_there(name):
    transformers = pytest.importorskip("transformers")
    task = list_tasks()[name]
    assert hasattr(transformers, task.model_class)
    assert all((FRAGMENTS / f"{leaf}.py").is_file() for leaf in task.row_leaves.values())
    assert (FRAGMENTS / "examples" / f"{task.example_leaf}.py").is_file()
    assert bool(task.learner) == task.trained
    assert task.writes or "batch_work" in task.row_leaves


@pytest.mark.parametrize("name", ROW_TASKS)
def test_no_code_compares_with_a_task_that_is_computed_by_row(name):
    """A task that nothing trains is one file: templates and stages read its row."""
    for path in (ROOT / "generator").rglob("*.py"):
        if path.parent.name == "tasks":
            continue
        values = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        assert name not in values, path
    for path in (ROOT / "templates").rglob("*.jinja"):
        assert name not in path.read_text(), path
