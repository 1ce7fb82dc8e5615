"""The JSON form of ``Hardware``: out with plain dicts, in through pydantic, and the published schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache

from hwdetect.checks import find_faults, shorten
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
    """The Hardware of a mapping. Raises ``ValueError`` with the path of the bad field, what it is and what is expected.

    Types are those of JSON, not what could be made of them; ranges and references are those of ``checks``.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"hardware: an object is expected, not {type(mapping).__name__}")
    if mapping.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema: this version reads {SCHEMA}, the file says {shorten(mapping['schema'])}")
    import json

    from pydantic import ValidationError

    try:
        hardware = _make_adapter().validate_json(json.dumps(dict(mapping)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "hardware"
        raise ValueError(f"{where}: {first['msg']} (it is {shorten(first['input'])})") from None
    except (TypeError, RecursionError) as error:
        raise ValueError(f"hardware: this is not JSON: {error}") from None
    for fault in find_faults(hardware):
        raise ValueError(str(fault))
    return hardware


@cache
def _make_adapter():
    from pydantic import TypeAdapter

    return TypeAdapter(Hardware)


def build_schema() -> dict[str, object]:
    """The JSON schema of ``perfgen detect --json``, from the types (``hwdetect/schema.json`` is this, written out)."""
    generated = _make_adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated, "title": "perfgen detect --json"}


def format_schema() -> str:
    """``hwdetect/schema.json`` as it must stand: ``python -m hwdetect.jsonio > hwdetect/schema.json``."""
    import json

    return json.dumps(build_schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


if __name__ == "__main__":
    print(format_schema(), end="")
