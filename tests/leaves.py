"""The leaves of templates/fragments as modules."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Values

FRAGMENTS = Path(__file__).resolve().parents[1] / "templates" / "fragments"
COMMON = ("masking", "quiet_imports")


def load_leaf(leaf: str, name: str | None = None) -> ModuleType:
    """A leaf under the name that it has in a project; others do not find it there (the fixture ``load`` sees to that).
    All find those that hide secrets and let imports end quietly."""
    if leaf not in COMMON:
        for common in COMMON:
            sys.modules.setdefault(common, load_leaf(common))
    spec = importlib.util.spec_from_file_location(name or leaf, FRAGMENTS / f"{leaf}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_beside(leaf: str, *others: str) -> ModuleType:
    """A leaf that imports ``others``, for a whole file of tests."""
    for other in others:
        sys.modules.setdefault(other, load_leaf(other))
    return load_leaf(leaf)


def make_control() -> Values:
    return Values(should_save=False, should_log=False, should_evaluate=False, should_training_stop=False)


def make_state(**given) -> Values:
    """What of TrainerState the leaves read, at the beginning of a run of eight steps."""
    start = {"global_step": 0, "max_steps": 8, "is_world_process_zero": True, "stateful_callbacks": {}}
    start |= {"best_global_step": None, "best_model_checkpoint": None}
    return Values(**{**start, "log_history": [], **given})


def check_imports(project: Path) -> None:
    """What one module of a project takes from another is there."""
    leaves = [*FRAGMENTS.iterdir(), *(FRAGMENTS / "serving").iterdir()]  # a folder holds the forms of a module
    ours = {path.stem for path in leaves}
    trees = {path.stem: ast.parse(path.read_text()) for path in project.glob("*.py")}
    for name, tree in trees.items():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in ours):
            assert node.module in trees, f"{name}.py takes {node.module}"
            assert {alias.name for alias in node.names} <= list_names(trees[node.module]), f"{name}.py: {node.module}"


def list_names(tree: ast.Module) -> set[str]:
    """What a module defines or imports itself."""
    named = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    taken = [alias for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
    return named | stored | {alias.asname or alias.name for alias in taken}
