"""The JSON form of the plan document: out as plain values, in through pydantic, and the published schema.

``python -m generator.emit.plan_json > generator/plan.schema.json`` writes the schema anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from generator.emit.plan_document import ABSENT, SCHEMA, HardwareRecord, PlanDocument


def to_json(value: Any) -> Any:
    """A record as what `json.loads` would give for it: fields under their names, lists for tuples; absent keys left out."""
    if is_dataclass(value):
        items = {f.name: getattr(value, f.name) for f in fields(value)}
        plain = {name: to_json(item) for name, item in items.items() if item is not ABSENT}
        return drop_unread(plain) if isinstance(value, HardwareRecord) else plain
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def drop_unread(value: Any) -> Any:
    """Without the keys that hold nothing, at any depth."""
    if isinstance(value, dict):
        return {key: drop_unread(item) for key, item in value.items() if item is not None}
    return [drop_unread(item) for item in value] if isinstance(value, list) else value


def from_json(mapping: Mapping[str, Any]) -> PlanDocument:
    """The document of a parsed plan.json. Raises ``ValueError`` with the path of the bad field and what was expected."""
    return validate(PlanDocument, mapping, "")


def check_parts(mapping: Mapping[str, Any], names: Iterable[str]) -> None:
    """Hold the named keys against their types. Raises ``ValueError`` with the path of the bad field."""
    types = get_type_hints(PlanDocument)
    for name in names:
        validate(types[name], mapping[name], name)


def validate(kind: Any, value: object, where: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in (where, *first["loc"]) if part != "")
        given = "" if first["type"] == "missing" else f" (it is {shorten(first['input'])})"
        raise ValueError(f"{path}: {first['msg'].lower()}{given}") from None


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def make_schema() -> dict[str, object]:
    """The JSON schema of plan.json and of `perfgen plan --json`, from the types."""
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        def default_schema(self, schema):
            return (
                self.generate_inner(schema["schema"]) if schema["default"] is ABSENT else super().default_schema(schema)
            )

    schema = TypeAdapter(PlanDocument).json_schema(mode="serialization", schema_generator=Generate)
    schema["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "perfgen plan --json"}


def dump_schema() -> str:
    """``generator/plan.schema.json`` as it must stand."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(dump_schema(), end="")
