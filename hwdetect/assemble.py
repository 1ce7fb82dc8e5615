"""Runs every probe under its own deadline and puts the readings together into one ``Hardware``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hwdetect.machine import Live, Machine, Recorded
from hwdetect.probes import cgroup, cpu, disks, memory, nodes, software
from hwdetect.probes.reading import Notes
from hwdetect.types import Cpu, Hardware, Memory, Nodes, Software

SHARE_OF_DEADLINE = 0.9  # what the probes may use of it; the rest is for putting things together


def detect_machine(
    root: Path | None,
    *,
    measure: bool,
    progress: Callable[[str], None] | None,
    deadline_s: float,
) -> Hardware:
    machine: Machine = Live(deadline_s * SHARE_OF_DEADLINE) if root is None else Recorded(Path(root))
    return read(machine, deadline_s * SHARE_OF_DEADLINE)


class Part:
    """One probe's result, with its own notes. On a live machine it runs in a thread that is left behind if it hangs."""

    def __init__(self, name: str, probe: Callable[[Notes], object], empty: object):
        self.name, self.empty, self.value, self.notes, self.done = name, empty, empty, Notes(), False
        self._probe = probe
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        self.value = self._probe(self.notes)
        self.done = True

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name=f"hwdetect-{self.name}", daemon=True)
        self._thread.start()

    def finish(self, ends: float, deadline_s: float) -> None:
        assert self._thread is not None
        self._thread.join(timeout=max(0.0, ends - time.monotonic()))
        if not self.done:
            self.value, self.notes = self.empty, Notes()
            self.notes.add(self.name, "deadline", f"no answer within {deadline_s:.1f} s")


def read(machine: Machine, deadline_s: float) -> Hardware:
    """Every probe of ``machine``, in parallel on a live one, one after the other on a recording."""

    def processor(notes: Notes) -> tuple[Cpu, Memory]:
        limits = cgroup.read_limits(machine)
        return cpu.read_cpu(machine, limits, notes), memory.read_memory(machine, limits, notes)

    parts = (
        Part("cpu", processor, (Cpu(), Memory())),
        Part("disks", lambda notes: disks.read_disks(machine, notes), ()),
        Part("software", lambda notes: software.read_software(machine), Software()),
        Part("nodes", lambda notes: nodes.read_nodes(machine), Nodes()),
    )
    if machine.live:
        ends = time.monotonic() + deadline_s
        for part in parts:
            part.start()
        for part in parts:
            part.finish(ends, deadline_s)
    else:
        for part in parts:
            part.run()
    (the_cpu, the_memory), the_disks, the_software, the_nodes = (part.value for part in parts)
    return Hardware(
        cpu=the_cpu,
        memory=the_memory,
        disks=the_disks,
        software=the_software,
        nodes=the_nodes,
        notes=tuple(note for part in parts for note in part.notes.items),
    )
