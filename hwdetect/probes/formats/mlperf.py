"""System descriptions of MLPerf submissions: free text of submitters, with the words and units that each one likes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line, get_mapping, get_text, parse_integer, parse_json
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
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


def read_mlperf(machine: Machine, notes: Notes) -> PartialHardware:
    document = get_mapping(parse_json(machine.read(FILE)))
    if not document:
        if machine.exists(FILE):
            notes.add("boards", FILE, "the document is broken")
        return NOTHING
    name = clean_line(get_text(document.get("accelerator_model_name")))
    count = min(_read_count(document, "accelerators_per_node") or 0, MAX_BOARDS)
    vendor = next((v for mark, v in MAKERS if mark in (name or "").lower()), "unknown")
    memory = parse_amount_bytes(get_text(document.get("accelerator_memory_capacity")))
    boards = tuple(
        Board(index=i, vendor=vendor, name=name, memory_bytes=memory, pcie=_parse_pcie(document)) for i in range(count)
    )
    sockets = _read_count(document, "host_processors_per_node")
    each = _read_count(document, "host_processor_core_count")
    stack = get_mapping(document.get("other_software_stack"))
    return PartialHardware(
        boards=boards,
        accelerators=list_board_accelerators(boards),
        cpu=Cpu(
            model_name=clean_line(get_text(document.get("host_processor_model_name"))),
            packages=sockets,
            # Submitters give cores of one processor; some give the CPUs of a virtual machine, which cannot be told.
            cores=sockets * each if sockets and each else None,
        ),
        memory=Memory(total_bytes=parse_amount_bytes(get_text(document.get("host_memory_capacity")))),
        nodes=Nodes(count=max(1, _read_count(document, "number_of_nodes") or 1), source=FILE),
        software=Software(
            os=clean_line(get_text(document.get("operating_system"))),
            driver=get_text(stack.get("cuda_driver_version")) or None,
            nccl=(get_text(stack.get("nccl_version")) or "").lstrip("v") or None,
        ),
    )


def _read_count(document: Mapping[str, object], key: str) -> int | None:
    # "1,024" is a thousand.
    number = parse_integer((get_text(document.get(key)) or "").replace(",", ""))
    return number if number and 0 < number < 1 << 20 else None


def _parse_pcie(document: Mapping[str, object]) -> Pcie:
    match = re.search(
        r"gen\s*(\d)\s*x\s*(\d{1,2})", get_text(document.get("accelerator_host_interconnect")) or "", re.IGNORECASE
    )
    return Pcie(generation_max=int(match.group(1)), width_max=int(match.group(2))) if match else Pcie()


def parse_amount_bytes(text: str | None) -> int | None:
    """Bytes of ``192 GB``, ``183359 MiB``, ``2.3TiB``, ``288G``, and of the slip ``2T GB``."""
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([MGT]?)(i?)B?", text or "", re.IGNORECASE)
    if match is None:
        return None
    unit = (match.group(2) + match.group(3)).upper()
    return int(float(match.group(1)) * UNITS[unit]) if unit in UNITS else None
