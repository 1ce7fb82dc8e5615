"""The plan.json of a generated project."""

from __future__ import annotations

from pathlib import Path

from generator.errors import SourceError
from generator.inputs.json_files import read_json


def read_plan(folder: Path, *keys: str) -> dict:
    """The plan.json of a generated project, with the parts that the caller reads. Raises ``SourceError``."""
    path, hint = folder / "plan.json", "give the folder of a generated project"
    plan = read_json(path, hint)
    if not isinstance(plan, dict):
        raise SourceError(f"{path} holds no object but {type(plan).__name__}", hint)
    missing = [key for key in keys if key not in plan]
    if missing:
        raise SourceError(f"{path} has no {', '.join(missing)}: it is no plan, or of another version", hint)
    return plan
