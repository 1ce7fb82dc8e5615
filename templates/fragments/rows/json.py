"""The rows of a JSON file: a list of objects, such a list under a name, columns, or one conversation."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import open_data

UNREADABLE = open_data.UNREADABLE


def read_rows(file: Path) -> Iterator[tuple[int, object]]:
    """The rows of the file, numbered from 1."""
    with open_data.open_data(file) as stream:
        try:
            content = json.loads(stream.read().decode("utf-8-sig"), object_pairs_hook=open_data.make_object)
            rows = list_rows(content)
        except (ValueError, RecursionError) as error:
            sys.exit(f"{file}: {error}")
    yield from enumerate(rows, start=1)


def list_rows(content: object) -> list:
    """The rows of a document. ValueError where it could be read in two ways, or in none."""
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        raise ValueError(f"no list and no object but {type(content).__name__}")
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    tables = [name for name, value in lists.items() if value and all(isinstance(row, dict) for row in value)]
    if any(holds_turns(lists[name]) for name in tables):
        return [content]
    if len(tables) == 1:
        return lists[tables[0]]
    if len(tables) > 1:
        raise ValueError(f"rows stand under {' and '.join(map(repr, tables))}: keep one of them")
    if lists and len(lists) == len(content) and len({len(value) for value in lists.values()}) == 1:
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    raise ValueError(f"an object of {', '.join(map(repr, list(content)[:9]))}, none of which is a list of rows")


def holds_turns(rows: list[dict]) -> bool:
    """Whether these are the turns of one conversation, and what holds them a row."""
    return all({"role", "content"} <= row.keys() or {"from", "value"} <= row.keys() for row in rows)


def parse_row(row: object) -> dict:
    if not isinstance(row, dict):
        raise ValueError(f"no object but {type(row).__name__}")
    return open_data.check_nesting(row)
