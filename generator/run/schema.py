"""The schemas of what programs exchange: ``python -m generator.run.schema`` writes ``schemas/*.json`` anew."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from generator.run.comparison import SmokeResult
from generator.run.figures import BenchFigures, InferFigures, RunFigures

FOLDER = Path(__file__).with_name("schemas")
TYPES = {"run.json": RunFigures, "infer.json": InferFigures, "bench.json": BenchFigures, "smoke.json": SmokeResult}
"""File name of a project to its type."""


def dump_schema(name: str) -> str:
    """The text of ``schemas/<name>``, from the type."""
    schema = TypeAdapter(TYPES[name]).json_schema()
    return (
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema, indent=2, allow_nan=False)
        + "\n"
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in TYPES:
        (FOLDER / name).write_text(dump_schema(name), encoding="utf-8")
