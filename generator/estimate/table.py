"""``perfgen estimate``: cost explicit configurations, one a row of a table, without deciding anything.

A row becomes a device, a ``ModelSpec`` and an ``Execution``; the columns are those of published measurement tables
(model sizes, device, precision, strategy, batch, checkpointing, kernels, adapters, quantizer). A row that cannot be
costed says why in ``error``.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path

from generator.cost import CostModel
from generator.cost.estimate import GIB, Estimate
from generator.errors import DestinationError, SourceError
from generator.estimate.columns import ADDED, NEEDED, NUMBERS
from generator.estimate.rows import TableRow, Uncostable, read_row
from generator.inputs.json_files import replace_file

REPORT_EVERY = 500


def estimate_table(
    in_path: Path | str, out_path: Path | str | None, progress: Callable[[str], None] | None = None
) -> list[dict[str, object]]:
    """Read ``in_path``, write it with ``ADDED`` columns to ``out_path``; returns the rows with these, as values.

    Raises ``SourceError`` where the table itself cannot be read, ``DestinationError`` where the answer cannot be written;
    a bad row never stops the run.
    """
    rows, columns = read_table(in_path)
    models: dict[tuple, CostModel] = {}
    if out_path:
        check_writable(Path(out_path))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*columns, *ADDED], restval="", extrasaction="ignore")
    writer.writeheader()
    costed: list[dict[str, object]] = []
    for index, row in enumerate(rows):
        added = cost_row(row, models)
        costed.append({name: row.get(name) for name in columns} | convert_to_values(added))
        writer.writerow({**row, **added})
        if progress and ((index + 1) % REPORT_EVERY == 0 or index + 1 == len(rows)):
            progress(f"{index + 1} of {len(rows)} rows, {sum(not r['error'] for r in costed)} costed")
    if out_path:
        write_table(Path(out_path), text.getvalue())
    return costed


def read_table(in_path: Path | str) -> tuple[list[dict[str, str]], list[str]]:
    """The rows and the names of the columns."""
    if Path(in_path).is_char_device() or Path(in_path).is_dir():  # /dev/zero never ends; a pipe does
        raise SourceError(f"--cases {in_path} is no regular file", "give a CSV file with a header line")
    try:
        with Path(in_path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"--cases {in_path}: {error}", "give a CSV file with a header line") from error
    if not set(NEEDED) <= set(columns):
        raise SourceError(
            f"--cases {in_path}: no columns {' and '.join(NEEDED)}", "`perfgen estimate --help` has the columns"
        )
    return rows, columns


def check_writable(path: Path) -> None:
    """Before minutes are spent on it. Raises ``DestinationError``."""
    there = os.path.lexists(path)
    if not os.access(path if there else path.parent, os.W_OK):
        why = "it cannot be written" if there or path.parent.is_dir() else "there is no such folder"
        raise DestinationError(f"--out {path}: {why}", "give a file in a folder you may write")


def write_table(path: Path, text: str) -> None:
    """Whole or not at all, where it is a file: an earlier table, or the cases themselves, may stand there."""
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal
            path.write_text(text, encoding="utf-8", newline="")
        else:
            replace_file(path.resolve(), text)
    except OSError as error:
        raise DestinationError(
            f"--out {path}: {error.strerror}", "give a file in a folder you may write, on a disk with room"
        ) from error
    except UnicodeEncodeError as error:
        raise DestinationError(f"--out {path}: {error}", "the cases hold half a surrogate pair") from error


def convert_to_values(added: dict[str, str]) -> dict[str, object]:
    """The added columns as numbers and truth values; ``None`` where they are empty."""
    values: dict[str, object] = {name: text or None for name, text in added.items()}
    for name in NUMBERS:
        values[name] = float(added[name]) if added[name] else None
    values["predicted_fits"] = added["predicted_fits"] == "true" if added["predicted_fits"] else None
    return values


def cost_row(row: dict[str, str], models: dict[tuple, CostModel]) -> dict[str, str]:
    """The added columns of one row. ``models`` caches cost models between rows."""
    try:
        estimate = estimate_row(read_row(row), models)
    except Uncostable as why:
        return {**dict.fromkeys(ADDED, ""), "error": str(why)}
    speed = estimate.tokens_per_second / estimate.devices
    factors = estimate.time_interval
    return {
        "predicted_peak_mem_gb": f"{estimate.allocator_peak_gib * GIB / 1e9:.4f}",
        "predicted_tokens_per_s_per_gpu": f"{speed:.3f}",
        "predicted_tokens_per_s_low": f"{speed / factors.high:.3f}" if factors else "",
        "predicted_tokens_per_s_high": f"{speed / factors.low:.3f}" if factors else "",
        "predicted_fits": "true" if estimate.fits else "false",
        "basis": estimate.basis,
        "error": "",
    }


def estimate_row(row: TableRow, models: dict[tuple, CostModel]) -> Estimate:
    return find_model(row, models).estimate(row.execution)


def find_model(row: TableRow, models: dict[tuple, CostModel]) -> CostModel:
    """Of the row's model and device, made once among ``models``."""
    key = (row.device.id, row.device.tdp_watts, row.memory_bytes, row.network_bytes_per_s, row.spec, row.task)
    if key not in models:
        models[key] = CostModel(
            row.device,
            row.spec,
            device_memory_bytes=row.memory_bytes,
            network_bytes_per_s=row.network_bytes_per_s,
            task=row.task,
        )
    return models[key]
