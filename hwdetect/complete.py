"""What ``machine.json`` of a recording adds to what its other files say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TypeVar

from hwdetect.machine.protocol import Machine
from hwdetect.probes.formats.machine_json import read_machine_json
from hwdetect.probes.notes import Notes
from hwdetect.probes.partial import fill_unknown
from hwdetect.types import (
    Accelerator,
    Board,
    Disk,
    Hardware,
    Link,
    Measurement,
    NetworkPort,
    Nodes,
    Note,
    PciPath,
    Software,
)

Item = TypeVar("Item", Link, NetworkPort, Disk, PciPath, Accelerator, Measurement)


def _fill_boards(boards: tuple[Board, ...], described: tuple[Board, ...]) -> Iterable[Board]:
    """Each board with what machine.json knows of the same one: the one at its place on the bus, or of its number."""
    for board in boards or described:
        # The place on the bus identifies a board; its number can shift when one drops out.
        same = next((b for b in described if b.pci_address and b.pci_address == board.pci_address), None)
        same = same or next((b for b in described if b.index == board.index and b.vendor == board.vendor), None)
        if same is None or (same.pci_address and board.pci_address and same.pci_address != board.pci_address):
            yield board
        else:
            yield replace(fill_unknown(board, same), pcie=fill_unknown(board.pcie, same.pcie))


def _merge_lists(read: tuple[Item, ...], described: tuple[Item, ...]) -> tuple[Item, ...]:
    """A list of machine.json where the files give none; where both have as many, what the files leave open."""
    if not read or len(read) != len(described):
        return read or described
    return tuple(
        fill_unknown(one, other) if _is_same(one, other) else one for one, other in zip(read, described, strict=True)
    )


def _is_same(one: Item, other: Item) -> bool:
    """Whether two entries speak of the same thing: nothing that both know differs but amounts that change."""
    return all(
        getattr(one, f.name) == getattr(other, f.name)
        for f in fields(one)
        if f.name in ("a", "b", "board", "port", "name", "role", "index", "gpu_instance")
    )


def add_machine_json(machine: Machine, hardware: Hardware, notes: tuple[Note, ...]) -> Hardware:
    """The reading with what machine.json adds: single fields where they are unknown, lists where they are empty."""
    own = Notes()
    extra, keys = read_machine_json(machine, own)
    notes = (*notes, *own.items)
    if extra is None:
        return replace(hardware, notes=notes)
    changes: dict[str, object] = {
        name: fill_unknown(getattr(hardware, name), getattr(extra, name)) for name in ("cpu", "memory", "software")
    }
    changes["boards"] = tuple(_fill_boards(hardware.boards, extra.boards))
    for name in ("links", "network", "disks", "paths", "accelerators", "measured"):
        changes[name] = _merge_lists(getattr(hardware, name), getattr(extra, name))
    if "accelerators" in keys:  # what a job was given there; boards and links may be read from other files
        changes["accelerators"] = extra.accelerators
    if hardware.nodes == Nodes():
        changes["nodes"] = extra.nodes
    software_now = changes["software"]
    assert isinstance(software_now, Software)
    changes["software"] = replace(software_now, packages=software_now.packages or extra.software.packages)
    # A capture has the notes of its machine: what a replay cannot ask anew is no news.
    changes["notes"] = extra.notes if "notes" in keys else notes
    return replace(hardware, **changes)  # type: ignore[arg-type]
