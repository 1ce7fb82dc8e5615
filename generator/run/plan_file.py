"""The plan.json of a generated project."""

from __future__ import annotations

from pathlib import Path

from generator.emit.plan_document import SCHEMA, PlanDocument
from generator.emit.plan_json import check_parts, from_json
from generator.errors import SourceError
from generator.inputs.json_files import read_json

FILE = "plan.json"
HINT = "give the folder of a generated project"


def read_document(folder: Path) -> PlanDocument:
    """The whole plan.json of a generated project. Raises ``SourceError``."""
    plan = read_object(folder / FILE)
    try:
        return from_json(plan)
    except ValueError as error:
        raise describe_refusal(folder, error) from error


def read_plan(folder: Path, *keys: str) -> dict:
    """The plan.json of a generated project; the parts that the caller reads are of their types. Raises ``SourceError``."""
    plan = read_object(folder / FILE)
    missing = [key for key in keys if key not in plan]
    if missing:
        raise SourceError(
            f"{folder / FILE} has no {', '.join(missing)}: it is no plan, or of another version of perfgen", HINT
        )
    try:
        check_parts(plan, keys)
    except ValueError as error:
        raise describe_refusal(folder, error) from error
    return plan


def read_object(path: Path) -> dict:
    plan = read_json(path, HINT)
    if not isinstance(plan, dict):
        raise SourceError(f"{path} holds no object but {type(plan).__name__}", HINT)
    if plan.get("schema", SCHEMA) != SCHEMA:
        raise SourceError(f"{path} is of schema {plan['schema']!r}, and this perfgen reads {SCHEMA}", HINT)
    return plan


def describe_refusal(folder: Path, error: ValueError) -> SourceError:
    return SourceError(f"{folder / FILE}: {error}; it is no plan, or of another version of perfgen", HINT)
