"""Reads what a machine is: ``detect``, ``capture``, and the JSON form of ``Hardware``.

    from hwdetect import detect
    hardware = detect()

Stands alone: nothing here needs torch or the rest of perfgen. Importing it costs nothing; each function loads its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hwdetect.types import Hardware

__all__ = ["capture", "detect", "from_json", "to_json"]


def detect(
    root: Path | None = None,
    measure: bool = False,
    progress: Callable[[str], None] | None = None,
    deadline_s: float = 5.0,
    report: Callable[[str], None] | None = None,
) -> Hardware:
    """This machine, or the recording in ``root``. Never raises for what a machine does; never longer than the deadline.

    ``measure`` runs short bandwidth and matmul tests afterwards (seconds, outside of the deadline) and tells
    ``progress`` what it is doing. ``report`` is told how long each probe took.
    """
    from hwdetect.assemble import detect_machine

    return detect_machine(root, measure=measure, progress=progress, deadline_s=deadline_s, report=report)


def capture(
    dest: Path,
    private: bool = False,
    measure: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Hardware:
    """Write a recording of this machine into the folder ``dest``, for ``detect(root=dest)``; what was read is returned.

    Serial numbers, host names, addresses and user names are left out and ids of boards replaced by others, unless
    ``private``. Raises ``OSError`` where the folder cannot be written, ``FileExistsError`` where it is not empty.
    """
    from hwdetect.recording.write import write_recording

    return write_recording(dest, private=private, progress=(progress or (lambda text: None)) if measure else None)


def to_json(hardware: Hardware) -> dict[str, object]:
    """The mapping that ``perfgen detect --json`` prints (``schema.json`` describes it)."""
    from hwdetect.jsonio import convert_to_mapping

    return convert_to_mapping(hardware)


def from_json(mapping: Mapping[str, object]) -> Hardware:
    """``Hardware`` from outside text, validated. Raises ``ValueError`` that names the bad field."""
    from hwdetect.jsonio import parse_hardware

    return parse_hardware(mapping)
