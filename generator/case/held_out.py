"""--eval: what a training is evaluated on."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from generator.case.request import Request
from generator.errors import SourceError, UsageError
from generator.inputs.data_files import DataSource, read_data

SHARE = 0.02
"""Of the rows, held out where nothing was asked for."""
MOST_ROWS = 500
"""Of that share: the standard error of a mean falls with the root of their number, and their time rises with it (ours)."""
FEW_ROWS = 20
"""Of a small set so many, or ``SMALL_SHARE`` of it where that is less: one row chooses no model (ours)."""
SMALL_SHARE = 0.1
NUMBER = re.compile(r"[0-9]*\.?[0-9]+([eE]-?[0-9]{1,3})?|inf|nan", re.ASCII)

SHOWN = 100
"""Characters of a name that is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """``share`` of the data (``None``: the default one), or the rows of a ``file`` of its own."""

    share: float | None = None
    file: DataSource | None = None


def read_held_out(request: Request, data: DataSource | None) -> HeldOut | None:
    """``None``: there is no evaluation. Raises ``UsageError``, and ``SourceError`` naming a row of the file."""
    if request.mode != "train":
        return None
    if request.eval == "none":
        if request.early_stopping is not None:
            raise UsageError(
                f"--early-stopping {request.early_stopping} needs an evaluation, and --eval is none", "drop one of them"
            )
        return None
    if request.eval is None:
        return HeldOut()
    if NUMBER.fullmatch(request.eval):
        share = float(request.eval)
        if not 0 < share < 1 or not math.isfinite(share):
            raise UsageError(f"--eval {request.eval} is no share of the data", "give one between 0 and 1, such as 0.02")
        return HeldOut(share=share)
    return HeldOut(file=read_file(request, request.eval, data))


def count_held_rows(rows: int | None, share: float | None) -> int:
    """Of ``rows`` (``None``: not counted). ``share``: ``None`` for the default one."""
    if share is not None:
        return MOST_ROWS if rows is None else max(1, int(rows * share))
    return (
        MOST_ROWS if rows is None else min(MOST_ROWS, max(1, int(rows * SHARE), min(FEW_ROWS, int(rows * SMALL_SHARE))))
    )


def leave_global_batch(held: int, rows: int | None, global_batch: int) -> int:
    """Of ``held`` rows those that can be held out: an optimizer step needs a global batch of what is left, as the emitted
    evaluation.py sees to it too."""
    return held if rows is None else max(0, min(held, rows - global_batch))


def choose_share(rows: int | None) -> float:
    """The default one, of which no more than ``count_held_rows`` says are taken."""
    return SHARE if rows is None or rows * SHARE >= FEW_ROWS else SMALL_SHARE


def read_file(request: Request, name: str, data: DataSource | None) -> DataSource:
    """The rows of a file, of the form of the data's own. Raises ``UsageError``."""
    try:
        exists = Path(name).exists()
    except OSError as error:  # longer than a name can be
        raise UsageError(f"--eval {name[:SHOWN]}…: {error.strerror}", "give a file or a share of the data") from error
    if not exists:
        raise UsageError(
            f"--eval {name} is neither a file, nor a share of the data, nor none",
            "give a file that is there, a share such as 0.02, or none",
        )
    if data is None or data.format == "hub":
        raise UsageError(
            f"--eval {name} needs --data that is a file too", "use a share of the data, such as --eval 0.02"
        )
    try:
        held = read_data(name, task=request.task, hints=request.hints, skip_bad=request.skip_bad)
    except SourceError as error:
        raise SourceError(error.message.replace("--data ", "--eval ", 1), error.hint) from error
    if describe_form(held) != describe_form(data):
        raise UsageError(
            f"--eval {name} is of another form than --data: {describe_form(held)}, not {describe_form(data)}",
            "give both in one form",
        )
    unknown = sorted(set(held.label_names) - set(data.label_names))
    if unknown and data.complete:
        raise SourceError(
            f"--eval {name}: the label {unknown[0]!r} is not in the data that is trained on, whose labels are "
            f"{', '.join(map(repr, data.label_names[:9]))}",
            "leave such rows out of it, or train on some",
        )
    return held


def describe_form(data: DataSource) -> str:
    if data.recognised is None:
        return data.format
    columns = ", ".join(f"{meaning} in {column!r}" for meaning, column in data.recognised.columns)
    return f"{data.format} with {data.recognised.kind}: {columns}"
