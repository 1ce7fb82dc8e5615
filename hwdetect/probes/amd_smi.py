"""``amd-smi static --json`` (and ``metric`` for what is in use): a list of boards, or one under ``gpu_data``."""

from __future__ import annotations

from hwdetect.machine import Machine
from hwdetect.probes.found import NOTHING, Found, numbered
from hwdetect.probes.pci import GENERATIONS
from hwdetect.probes.reading import Notes, json_of, mapping, number, text_of, whole
from hwdetect.types import Accelerator, Board, Link, Pcie

SECONDS = 2.0
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30}


def read_amd_smi(machine: Machine, notes: Notes) -> Found:
    output = machine.run(("amd-smi", "static", "--json"), SECONDS)
    entries = _entries(json_of(output.text))
    if not entries:
        if output.problem not in (None, "not installed", "not in the recording"):
            notes.add("boards", "amd-smi", output.problem or "no answer")
        return NOTHING
    used = _used(machine)
    boards = tuple(_board(i, entry) for i, entry in enumerate(entries))
    accelerators = tuple(
        Accelerator(
            index=0,
            board=b.index,
            name=b.name,
            memory_bytes=b.memory_bytes,
            free_memory_bytes=b.memory_bytes - used[b.index] if b.memory_bytes and b.index in used else None,
            uuid=b.uuid,
            compute_units=b.compute_units,
            compute_share=1.0,
        )
        for b in boards
    )
    return Found(boards=boards, accelerators=numbered(accelerators), links=_links(machine))


def _entries(document: object) -> list[dict[str, object]]:
    listed = mapping(document).get("gpu_data", document)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _amount(value: object) -> int | None:
    """Bytes of ``{"value": 196592, "unit": "MB"}`` (amd-smi's MB are 2^20) or of a text like ``196592 MB``."""
    if isinstance(value, dict):
        size, unit = number(text_of(value.get("value"))), text_of(value.get("unit"))
    else:
        parts = (text_of(value) or "").split()
        size, unit = (number(parts[0]), parts[1]) if len(parts) == 2 else (None, None)
    return int(size * UNITS[unit]) if size and unit in UNITS else None


def _plain(value: object) -> str | None:
    return text_of(mapping(value).get("value")) if isinstance(value, dict) else text_of(value)


def _board(index: int, entry: dict[str, object]) -> Board:
    asic, bus, numa = (mapping(entry.get(key)) for key in ("asic", "bus", "numa"))
    limit, partition = mapping(entry.get("limit")), mapping(entry.get("partition"))
    device = whole(text_of(asic.get("device_id")))
    node = whole(text_of(numa.get("node")))
    return Board(
        index=index,
        vendor="amd",
        name=text_of(asic.get("market_name")),
        architecture=text_of(asic.get("target_graphics_version")),
        uuid=text_of(mapping(entry.get("driver")).get("uuid")),
        pci_id=f"1002:{device:04x}" if device is not None and 0 <= device < 1 << 16 else None,
        pci_address=(text_of(bus.get("bdf")) or "").lower() or None,
        memory_bytes=_amount(mapping(entry.get("vram")).get("size")),
        compute_units=whole(text_of(asic.get("num_compute_units"))),
        numa_node=node if node is not None and node >= 0 else None,
        power_limit_watts=number(_plain(limit.get("max_power") or limit.get("current_power_limit"))),
        partition_mode=text_of(partition.get("compute_partition") or partition.get("accelerator_partition")),
        memory_partition_mode=text_of(partition.get("memory_partition")),
        state="ok",
        pcie=Pcie(
            generation_max=GENERATIONS.get(_plain(bus.get("max_pcie_speed")) or ""),
            width_max=whole(_plain(bus.get("max_pcie_width"))),
        ),
    )


def _used(machine: Machine) -> dict[int, int]:
    found = {}
    for i, entry in enumerate(_entries(json_of(machine.run(("amd-smi", "metric", "--json"), SECONDS).text))):
        used = _amount(mapping(entry.get("mem_usage")).get("used_vram"))
        if used is not None:
            found[i] = used
    return found


def _links(machine: Machine) -> tuple[Link, ...]:
    """XGMI and PCIe pairs of ``amd-smi topology --json``."""
    found: dict[tuple[int, int], Link] = {}
    for entry in _entries(json_of(machine.run(("amd-smi", "topology", "--json"), SECONDS).text)):
        a = whole(text_of(entry.get("gpu")))
        links = entry.get("links")
        for link in links if isinstance(links, list) else []:
            b = whole(text_of(mapping(link).get("gpu")))
            kind = (text_of(mapping(link).get("link_type")) or "").lower()
            if a is not None and b is not None and a != b and kind in ("xgmi", "pcie"):
                pair = (min(a, b), max(a, b))
                found[pair] = Link(a=pair[0], b=pair[1], kind=kind)
    return tuple(found[pair] for pair in sorted(found))
