"""The JSON form of ``Hardware``: out with plain dicts, in through pydantic, and the published schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from hwdetect.types import SCHEMA, Hardware


def convert_to_mapping(hardware: Hardware) -> dict[str, object]:
    """Every field under its own name; tuples as lists. Same Hardware, same bytes."""
    plain = _convert_to_plain(hardware)
    assert isinstance(plain, dict)
    return plain


def _convert_to_plain(value: object) -> object:
    if is_dataclass(value):
        return {f.name: _convert_to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_convert_to_plain(item) for item in value]
    return value


def parse_hardware(mapping: Mapping[str, object]) -> Hardware:
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
        raise ValueError(f"{where}: {first['msg']} (it is {_shorten(first['input'])})") from None


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def build_schema() -> dict[str, object]:
    """The JSON schema of ``perfgen detect --json``, from the types (``hwdetect/schema.json`` is this, written out)."""
    from pydantic import TypeAdapter

    generated = TypeAdapter(Hardware).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated, "title": "perfgen detect --json"}


def format_schema() -> str:
    """``hwdetect/schema.json`` as it must stand: ``python -m hwdetect.jsonio > hwdetect/schema.json``."""
    import json

    return json.dumps(build_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(format_schema(), end="")
