"""The JSON form of the plan document: out as plain values, in field by field, and the published schema.

``python -m generator.emit.plan_json > generator/plan.schema.json`` writes the schema anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from generator.emit.plan_document import ABSENT, SCHEMA, HardwareRecord, PlanDocument


def to_json(value: Any) -> Any:
    """A record as what `json.loads` would give for it: fields under their names, lists for tuples; absent keys left out."""
    if is_dataclass(value):
        items = {name_key(f.name): getattr(value, f.name) for f in fields(value)}
        plain = {name: to_json(item) for name, item in items.items() if item is not ABSENT}
        return drop_unread(plain) if isinstance(value, HardwareRecord) else plain
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def name_key(name: str) -> str:
    """A field's key in the JSON: ``from_`` is ``from``, which no field of a class may be called."""
    return name.removesuffix("_")


def drop_unread(value: Any) -> Any:
    """Without the keys that hold nothing, at any depth."""
    if isinstance(value, dict):
        return {key: drop_unread(item) for key, item in value.items() if item is not None}
    return [drop_unread(item) for item in value] if isinstance(value, list) else value


def from_json(mapping: Mapping[str, Any]) -> PlanDocument:
    """The document of a parsed plan.json. Raises ``ValueError`` with the path of the bad field and what was expected."""
    return read_value(PlanDocument, mapping, "")


def check_parts(mapping: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The named keys as their types have them. Raises ``ValueError`` with the path of the bad field."""
    kinds = get_fields(PlanDocument)
    return {name: to_json(read_value(kinds[name], mapping[name], name)) for name in names}


PLAIN = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}


def read_value(kind: Any, value: Any, path: str) -> Any:
    """``value``, as `json.loads` gives it, as a ``kind``: a record, a tuple, a mapping, one of several, or plain.

    pydantic would do; importing it and building its validators takes longer than `perfgen why` itself.
    """
    origin, options = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return read_record(kind, value, path)
    if origin in (Union, UnionType):
        return read_option(options, value, path)
    if origin is tuple:
        expect(isinstance(value, list), "a list", value, path)
        return read_items(options[:1] * len(value) if options[1:] == (...,) else options, value, path)
    if isinstance(kind, type) and issubclass(kind, tuple):
        kinds = tuple(get_type_hints(kind).values())
        if isinstance(value, list) and len(kinds) - len(kind._field_defaults) <= len(value) < len(kinds):
            kinds = kinds[: len(value)]  # of an earlier version, which had no later ones
        return kind(*read_items(kinds, value, path))
    if origin in (dict, Mapping):
        expect(isinstance(value, dict), "an object", value, path)
        return {key: read_value(options[1], item, f"{path}.{key}") for key, item in value.items()}
    if origin is Literal:
        expect(value in options, f"one of {', '.join(map(str, options))}", value, path)
        return value
    expect(type(value) is kind or (kind is float and type(value) is int), PLAIN[kind], value, path)
    expect(kind is not float or abs(value) <= sys.float_info.max, "a number that a float holds", value, path)
    expect(kind is not str or "\0" not in value, "a string without NUL", value, path)
    return value


def read_items(kinds: tuple[Any, ...], value: Any, path: str) -> tuple:
    expect(isinstance(value, list) and len(value) == len(kinds), f"a list of {len(kinds)}", value, path)
    return tuple(read_value(k, v, f"{path}.{i}") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))


def read_record(kind: Any, value: Any, path: str) -> Any:
    """Keys that the type does not know are not looked at: a later version may write more."""
    expect(isinstance(value, dict), "an object", value, path)
    kinds = get_fields(kind)
    needed = [name_key(f.name) for f in fields(kind) if f.default is f.default_factory is MISSING]
    missing = [key for key in needed if key not in value]
    if missing:
        raise ValueError(f"{path + '.' if path else ''}{missing[0]} is missing")
    prefix, keys = f"{path}." if path else "", {name: name_key(name) for name in kinds}
    return kind(
        **{name: read_value(kinds[name], value[key], prefix + key) for name, key in keys.items() if key in value}
    )


def read_option(options: tuple[Any, ...], value: Any, path: str) -> Any:
    """The first of several types that ``value`` is of; the complaint is that of the last."""
    *others, last = sorted(options, key=lambda option: option is not NoneType)
    for option in others:
        try:
            return read_value(option, value, path)
        except ValueError:
            continue
    return read_value(last, value, path)


def expect(holds: bool, words: str, value: object, path: str) -> None:
    if not holds:
        text = repr(value)
        raise ValueError(f"{path} is not {words} (it is {text if len(text) <= 60 else text[:57] + '...'})")


@cache
def get_fields(kind: Any) -> dict[str, Any]:
    """The types of a record's fields."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


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
    for record in schema["$defs"].values():
        if "properties" in record:
            record["properties"] = {name_key(name): kind for name, kind in record["properties"].items()}
            record["required"] = [name_key(name) for name in record.get("required", ())]
    schema["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "perfgen plan --json"}


def dump_schema() -> str:
    """``generator/plan.schema.json`` as it must stand."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


if __name__ == "__main__":
    print(dump_schema(), end="")
