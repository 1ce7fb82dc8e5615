"""System descriptions of MLPerf submissions: free text of submitters, with the words and units that each one likes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hwdetect.machine import Machine
from hwdetect.probes.found import NOTHING, Found, whole_boards
from hwdetect.probes.reading import Notes, json_of, mapping, squeeze, text_of, whole
from hwdetect.types import Board, Cpu, Memory, Nodes, Pcie, Software

FILE = "mlperf-system.json"
MAKERS = (
    ("nvidia", "nvidia"),
    ("instinct", "amd"),
    ("amd", "amd"),
    ("intel", "intel"),
    ("gaudi", "habana"),
    ("tpu", "google"),
)
UNITS = {"": 10**9, "M": 10**6, "G": 10**9, "T": 10**12, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
MAX_BOARDS = 1024


def read_mlperf(machine: Machine, notes: Notes) -> Found:
    document = mapping(json_of(machine.read(FILE)))
    if not document:
        if machine.exists(FILE):
            notes.add("boards", FILE, "the document is broken")
        return NOTHING
    name = squeeze(text_of(document.get("accelerator_model_name")))
    count = min(_count(document, "accelerators_per_node") or 0, MAX_BOARDS)
    vendor = next((v for mark, v in MAKERS if mark in (name or "").lower()), "unknown")
    memory = amount_bytes(text_of(document.get("accelerator_memory_capacity")))
    boards = tuple(
        Board(index=i, vendor=vendor, name=name, memory_bytes=memory, pcie=_pcie(document)) for i in range(count)
    )
    sockets = _count(document, "host_processors_per_node")
    each = _count(document, "host_processor_core_count")
    stack = mapping(document.get("other_software_stack"))
    return Found(
        boards=boards,
        accelerators=whole_boards(boards),
        cpu=Cpu(
            model_name=squeeze(text_of(document.get("host_processor_model_name"))),
            packages=sockets,
            # Submitters give cores of one processor; some give the CPUs of a virtual machine, which cannot be told.
            cores=sockets * each if sockets and each else None,
        ),
        memory=Memory(total_bytes=amount_bytes(text_of(document.get("host_memory_capacity")))),
        nodes=Nodes(count=max(1, _count(document, "number_of_nodes") or 1), source=FILE),
        software=Software(
            os=squeeze(text_of(document.get("operating_system"))),
            driver=text_of(stack.get("cuda_driver_version")) or None,
            nccl=(text_of(stack.get("nccl_version")) or "").lstrip("v") or None,
        ),
    )


def _count(document: Mapping[str, object], key: str) -> int | None:
    number = whole((text_of(document.get(key)) or "").replace(",", ""))
    return number if number and 0 < number < 1 << 20 else None


def _pcie(document: Mapping[str, object]) -> Pcie:
    match = re.search(
        r"gen\s*(\d)\s*x\s*(\d{1,2})", text_of(document.get("accelerator_host_interconnect")) or "", re.IGNORECASE
    )
    return Pcie(generation_max=int(match.group(1)), width_max=int(match.group(2))) if match else Pcie()


def amount_bytes(text: str | None) -> int | None:
    """Bytes of ``192 GB``, ``183359 MiB``, ``2.3TiB``, ``288G``, and of the slip ``2T GB``."""
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([MGT]?)(i?)B?", text or "", re.IGNORECASE)
    if match is None:
        return None
    unit = (match.group(2) + match.group(3)).upper()
    return int(float(match.group(1)) * UNITS[unit]) if unit in UNITS else None
