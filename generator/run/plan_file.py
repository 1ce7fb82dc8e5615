"""The plan.json of a generated project, and its config.yaml as it stands."""

from __future__ import annotations

from pathlib import Path

from generator.emit.plan_document import SCHEMA, PlanDocument
from generator.emit.plan_json import check_parts, from_json
from generator.errors import SourceError
from generator.inputs.json_files import is_small_file, read_json

FILE = "plan.json"
HINT = "give the folder of a generated project"


def read_document(folder: Path) -> PlanDocument:
    """The whole plan.json of a generated project. Raises ``SourceError``."""
    plan = read_object(folder / FILE)
    try:
        document = from_json(plan)
        check_references(document)
        return document
    except ValueError as error:
        raise describe_refusal(folder, error) from error


def read_plan(folder: Path, *keys: str) -> dict:
    """These parts of the plan.json of a generated project, each of its type. Raises ``SourceError``."""
    plan = read_object(folder / FILE)
    missing = [key for key in keys if key not in plan]
    if missing:
        raise SourceError(
            f"{folder / FILE} has no {', '.join(missing)}: it is no plan, or of another version of perfgen", HINT
        )
    try:
        return check_parts(plan, keys)
    except ValueError as error:
        raise describe_refusal(folder, error) from error


def check_references(document: PlanDocument) -> None:
    """What one part says of another. Raises ``ValueError`` with the path of the bad field."""
    decisions = document.decisions + (document.serving.decisions if document.serving else ())
    axes = {decision.axis for decision in decisions}
    for index, edit in enumerate(document.provenance):
        if edit.axis not in axes:
            raise ValueError(f"provenance.{index}.axis is {edit.axis!r}, which no decision is about")
    for axis in ("parallelism", *(decision.axis for decision in document.decisions)):
        if axis not in document.choice:
            raise ValueError(f"choice.{axis} is missing")
    for index, row in enumerate(document.devices):
        for name in ("step_seconds", "peak_memory_gib"):
            if row.fits and getattr(row, name) is None:
                raise ValueError(f"devices.{index}.{name} is null, though the plan fits")


def read_object(path: Path) -> dict:
    plan = read_json(path, HINT, own=True)
    if not isinstance(plan, dict):
        raise SourceError(f"{path} holds no object but {type(plan).__name__}", HINT)
    schema = plan.get("schema", SCHEMA)
    if type(schema) is not int or schema != SCHEMA:  # true and 1.0 are equal to 1
        raise SourceError(f"{path} is of schema {schema!r}, and this perfgen reads {SCHEMA}", HINT)
    return plan


def describe_refusal(folder: Path, error: ValueError) -> SourceError:
    return SourceError(f"{folder / FILE}: {error}; it is no plan, or of another version of perfgen", HINT)


def read_config(folder: Path) -> dict:
    """The project's config.yaml; empty where there is none that can be read: only its edits are looked at."""
    import yaml

    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if is_small_file(path) else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}
