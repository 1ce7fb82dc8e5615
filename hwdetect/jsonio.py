"""The JSON form of ``Hardware``: out with plain dicts, in through pydantic, and the published schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from hwdetect.types import SCHEMA, Hardware


def as_mapping(hardware: Hardware) -> dict[str, object]:
    """Every field under its own name; tuples as lists. Same Hardware, same bytes."""
    plain = _plain(hardware)
    assert isinstance(plain, dict)
    return plain


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def as_hardware(mapping: Mapping[str, object]) -> Hardware:
    """The Hardware of a mapping. Raises ``ValueError`` with the path of the bad field and what was expected."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"hardware: an object is expected, not {type(mapping).__name__}")
    if mapping.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema: this version reads {SCHEMA}, the file says {mapping['schema']!r}")
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Hardware).validate_python(dict(mapping))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "hardware"
        raise ValueError(f"{where}: {first['msg']} (it is {_short(first['input'])})") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def schema() -> dict[str, object]:
    """The JSON schema of ``perfgen detect --json``, from the types (``hwdetect/schema.json`` is this, written out)."""
    from pydantic import TypeAdapter

    made = TypeAdapter(Hardware).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "perfgen detect --json"}


def schema_text() -> str:
    """``hwdetect/schema.json`` as it must stand: ``python -m hwdetect.jsonio > hwdetect/schema.json``."""
    import json

    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
