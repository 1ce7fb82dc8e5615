"""What the measuring child processes print, one JSON object per line: a measurement, ``{"progress": …}`` or ``{"doubt": …}``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from hwdetect.measure.rounds import Visit, join_visits
from hwdetect.types import Measurement


class Doubt(str):
    """A line of progress that is more: why a figure is missing, or how far it can be believed. It is kept as a note."""


def print_message(**values: object) -> None:
    print(json.dumps(values, allow_nan=False), flush=True)


def print_figure(visits: Sequence[Visit], name: str, of: str, **fields: object) -> None:
    """What the visits agree on, after what there is to tell of it."""
    figure = join_visits(visits, name, str(fields["unit"]))
    if figure.doubt:
        print_message(doubt=f"{of} {figure.doubt}")
    if figure.value is not None:
        print_message(**fields, value=figure.value, spread=figure.spread)


def collect_measurements(lines: Iterable[str], progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    """The measurements among a child's lines; what it says of its progress and of its doubts goes to ``progress``."""
    measurements = []
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue  # a library's own print
        if isinstance(message, dict) and "progress" in message:
            progress(str(message["progress"]))
        elif isinstance(message, dict) and "doubt" in message:
            progress(Doubt(message["doubt"]))
        elif isinstance(message, dict) and isinstance(message.get("value"), float) and message["value"] > 0:
            measurements.append(Measurement(**message))
    return tuple(measurements)
