"""The names of classes: `datasets` writes a ClassLabel as a number, and the names beside the rows."""

import json
from collections.abc import Iterator, Mapping, Sequence


def read_class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> list[str] | None:
    """Of a column, from the metadata of an Arrow schema; ``None`` where no names are written."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]
        return feature["names"] if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError):
        return None


def name_labels(rows: Iterator[tuple], column: str, names: Sequence[str] | None) -> Iterator[tuple]:
    """Rows, each with where it stands, and with its label by name: -1 is none, another number without one an error."""
    for where, row in rows:
        number = row.get(column)
        if names is not None and isinstance(number, int):
            row[column] = name_label(number, names)
        yield where, row


def name_label(number: int, names: Sequence[str]) -> str | ValueError | None:
    if 0 <= number < len(names):
        return names[number]
    if number == -1:
        return None
    return ValueError(f"the label {number} has no name: there are those of 0 to {len(names) - 1}")
