"""Reads what a machine is: ``detect``, ``capture``, and the JSON form of ``Hardware``.

    from hwdetect import detect, devices, instances, lookup
    hardware = detect()
    lookup("h100").flops("bf16")

Stands alone: nothing here needs torch or the rest of perfgen. Importing it costs nothing; each function loads its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hwdetect.catalog import UnknownDevice
    from hwdetect.cloud import Instance, Price
    from hwdetect.types import Accelerator, Board, Cpu, Device, Finding, Hardware, Link, Memory, Note

__all__ = [
    "Accelerator",
    "Board",
    "Cpu",
    "Device",
    "Finding",
    "Hardware",
    "Instance",
    "Link",
    "Memory",
    "Note",
    "Price",
    "UnknownDevice",
    "__version__",
    "capture",
    "detect",
    "devices",
    "from_json",
    "instances",
    "lookup",
    "to_json",
]
_HOMES = {"Instance": "hwdetect.cloud", "Price": "hwdetect.cloud", "UnknownDevice": "hwdetect.catalog"}
_TYPES = ("Accelerator", "Board", "Cpu", "Device", "Finding", "Hardware", "Link", "Memory", "Note")


def __getattr__(name: str) -> object:
    """Types and the version, loaded when they are asked for."""
    from importlib import import_module

    if name == "__version__":
        from importlib import metadata  # parses mail headers: some 10 ms

        return metadata.version("perfgen")
    home = _HOMES.get(name, "hwdetect.types" if name in _TYPES else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def devices() -> tuple[Device, ...]:
    """Every device of the catalogue, in the order of the ids."""
    from hwdetect.catalog import list_devices

    return list_devices()


def instances() -> tuple[Instance, ...]:
    """Every cloud instance type, in the order of the table."""
    from hwdetect.cloud import list_instances

    return list_instances()


def lookup(name: str) -> Device:
    """The device of an id, an alias or what its tool prints (``h100``, ``NVIDIA A100-SXM4-80GB``); raises ``UnknownDevice``, with
    the nearest names."""
    from hwdetect.catalog import load

    return load(name)


def detect(
    root: Path | str | None = None,
    measure: bool = False,
    progress: Callable[[str], None] | None = None,
    deadline_s: float = 5.0,
    report: Callable[[str], None] | None = None,
) -> Hardware:
    """This machine, or the recording in ``root``. Never raises for what a machine does; never longer than the deadline.
    Raises ``NotADirectoryError`` where ``root`` is no folder.

    ``measure`` runs short bandwidth and matmul tests afterwards (seconds, outside of the deadline) and tells
    ``progress`` what it is doing. ``report`` is told how long each probe took.
    """
    from pathlib import Path

    from hwdetect.assemble import detect_machine

    folder = None if root is None else Path(root)
    if folder is not None and not folder.is_dir():
        raise NotADirectoryError(f"{root} is no folder: a recording is one, as `perfgen detect --capture` writes it")

    return detect_machine(folder, measure=measure, progress=progress, deadline_s=deadline_s, report=report)


def capture(
    dest: Path | str,
    private: bool = False,
    measure: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Hardware:
    """Write a recording of this machine into the folder ``dest``, for ``detect(root=dest)``; what was read is returned.

    Serial numbers, host names, addresses and user names are left out and ids of boards replaced by others, unless
    ``private``. Raises ``OSError`` where the folder cannot be written, ``FileExistsError`` where it is not empty.
    """
    from pathlib import Path

    from hwdetect.recording.write import write_recording

    return write_recording(Path(dest), private=private, progress=(progress or (lambda text: None)) if measure else None)


def to_json(hardware: Hardware) -> dict[str, object]:
    """The mapping that ``perfgen detect --json`` prints (``schema.json`` describes it)."""
    from hwdetect.jsonio import convert_to_mapping

    return convert_to_mapping(hardware)


def from_json(mapping: Mapping[str, object]) -> Hardware:
    """``Hardware`` from outside text, validated. Raises ``ValueError`` that names the bad field."""
    from hwdetect.jsonio import parse_hardware

    return parse_hardware(mapping)
