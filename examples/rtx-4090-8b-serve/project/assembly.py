"""The output of a batch: every row of the input, with what was computed for it, in order."""

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from batch_input import BATCH_ROWS, open_parquet
from open_data import is_nested
from shards import dump_line

TABLE_NESTED = 16
"""Levels of a value in a column of its own: Arrow writes Parquet that nests deeper than it reads (about 40 lists)."""
OWN = "input_"
"""Before the name of a column of the input that has the name of one that is computed."""


def merge_row(values: dict, result: dict) -> dict:
    """Both: an expected answer stands beside the model's."""
    return {rename_column(name, values, result): value for name, value in values.items()} | result


def rename_column(name: str, names: Iterable[str], computed: Iterable[str]) -> str:
    while name in computed:
        name = f"{OWN}{name}"
        while name in names:
            name = f"{OWN}{name}"
    return name


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    with path.open("wb") as stream:
        for row in rows:
            stream.write(dump_line(row))
        stream.flush()
        os.fsync(stream.fileno())


def write_parquet_of_rows(path: Path, read_rows, computed: dict[str, str]) -> None:
    """Rows of text formats: read twice, for the types of the columns first. ``read_rows`` begins anew at each call."""
    import pyarrow as pa

    def read_named() -> Iterator[dict]:
        return ({convert_value(name): value for name, value in row.items()} for row in read_rows())

    schema, texts = find_schema(read_named(), computed)
    batches = (
        pa.RecordBatch.from_pylist([convert_row(row, texts) for row in part], schema) for part in cut(read_named())
    )
    write_batches(path, batches, schema)


def write_parquet_of_parquet(path: Path, source: Path, read_results, rows: int, computed: dict[str, str]) -> None:
    """The columns of the input as they are, with their types. ``read_results`` begins anew at each call: the first
    thousands may hold nothing but errors."""
    import pyarrow as pa

    file = open_parquet(source)
    names = file.schema_arrow.names
    renamed = [rename_column(name, names, computed) for name in names]
    old = [field.with_name(name) for field, name in zip(file.schema_arrow, renamed, strict=True)]
    types, texts = find_schema(read_results(), computed)
    new = [types.field(name) for name in computed]
    schema = pa.schema([*old, *new])
    results = read_results()

    def join() -> Iterator:
        left = rows
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            batch = batch.slice(0, left)
            left -= batch.num_rows
            part = [convert_row(row, texts) for row in islice(results, batch.num_rows)]
            added = [pa.array([row[field.name] for row in part], field.type) for field in new]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)

    write_batches(path, join(), schema)


def write_batches(path: Path, batches: Iterable, schema) -> None:
    import pyarrow.parquet as pq

    with path.open("wb") as stream:
        with pq.ParquetWriter(stream, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        stream.flush()
        os.fsync(stream.fileno())


def find_schema(rows: Iterable[dict], computed: dict[str, str]):
    """The Arrow schema of all rows, and the columns that become JSON because rows disagree on what they hold."""
    import pyarrow as pa

    of_kind = {"list": pa.list_(pa.float32()), "any": pa.null()}
    types: dict = {}
    texts: set[str] = set()
    for part in cut(rows):
        for name in dict.fromkeys(name for row in part for name in row):
            if name in texts:
                continue
            if any(is_nested(row.get(name), TABLE_NESTED) for row in part):
                texts.add(name)
                continue
            try:
                kind = pa.array([convert_value(row.get(name)) for row in part]).type
                both = pa.unify_schemas(
                    [pa.schema([(name, types.get(name, kind))]), pa.schema([(name, kind)])],
                    promote_options="permissive",
                )
                types[name] = both.field(0).type
            except (pa.ArrowException, OverflowError, ValueError):
                texts.add(name)
            if name in types and has_empty_struct(types[name]):  # Parquet has none
                texts.add(name)
    types |= {name: pa.string() for name in texts} | {
        name: of_kind.get(kind) or pa.type_for_alias(kind)
        for name, kind in computed.items()
        if kind != "any" or name not in types
    }
    return pa.schema(list(types.items())), texts


def has_empty_struct(kind) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return has_empty_struct(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(has_empty_struct(field.type) for field in kind)
    return False


def convert_row(row: dict, texts: set[str]) -> dict:
    return {
        name: json.dumps(value) if name in texts and value is not None else convert_value(value)
        for name, value in row.items()
    }


def convert_value(value: object) -> object:
    """With what UTF-8 cannot hold written out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {convert_value(name): convert_value(item) for name, item in value.items()}
    return [convert_value(item) for item in value] if isinstance(value, list) else value


def cut(rows: Iterable[dict]) -> Iterator[list[dict]]:
    rows = iter(rows)
    while part := list(islice(rows, BATCH_ROWS)):
        yield part
