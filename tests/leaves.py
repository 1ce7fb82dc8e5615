"""The leaves of templates/fragments as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Values

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


def make_control() -> Values:
    return Values(should_save=False, should_log=False, should_training_stop=False)


def make_state(**given) -> Values:
    """What of TrainerState the leaves read, at the beginning of a run of eight steps."""
    start = {"global_step": 0, "max_steps": 8, "is_world_process_zero": True, "stateful_callbacks": {}}
    start |= {"best_global_step": None, "best_model_checkpoint": None}
    return Values(**{**start, "log_history": [], **given})
