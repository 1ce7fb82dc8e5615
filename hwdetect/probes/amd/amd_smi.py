"""``amd-smi static --json`` (and ``metric`` for what is in use): a list of boards, or one under ``gpu_data``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes.amd.kfd import drop_integrated
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.parsing import get_mapping, get_text, parse_integer, parse_json, parse_number
from hwdetect.probes.partial import NOTHING, PartialHardware
from hwdetect.probes.pci import GENERATIONS
from hwdetect.types import Accelerator, Board, Link, Pcie, Software

SECONDS = 2.0
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30}


def read_amd_smi(machine: Machine, notes: Notes) -> PartialHardware:
    text = run_tool(machine, ("amd-smi", "static", "--json"), SECONDS, notes, "boards")
    entries = _list_entries(parse_json(text))
    if not entries:
        note_no_board(notes, "amd-smi", text)
        return NOTHING
    now = _read_metrics(machine, notes)
    parts = tuple(_add_metrics(_build_board(i, entry), now.get(i, {})) for i, entry in enumerate(entries))
    used = {
        i: size
        for i, entry in now.items()
        if (size := _parse_amount(get_mapping(entry.get("mem_usage")).get("used_vram")))
    }
    groups = _group_partitions(parts)
    boards = tuple(_join_partitions(index, members) for index, members in enumerate(groups))
    board_of = {part.index: index for index, members in enumerate(groups) for part in members}
    accelerators = tuple(
        Accelerator(
            index=0,
            board=index,
            name=part.name,
            memory_bytes=part.memory_bytes,
            free_memory_bytes=max(0, part.memory_bytes - used[part.index])
            if part.memory_bytes and part.index in used
            else None,
            profile=(part.partition_mode or "").lower() or None if len(members) > 1 else None,
            uuid=part.uuid,
            compute_units=part.compute_units,
            compute_share=1.0 / len(members),
        )
        for index, members in enumerate(groups)
        for part in members
    )
    version = get_text(get_mapping(entries[0].get("driver")).get("version"))
    return PartialHardware(
        boards=boards,
        accelerators=drop_integrated(boards, accelerators),
        links=_read_links(machine, notes, board_of),
        software=Software(driver=version),
    )


def _group_partitions(parts: tuple[Board, ...]) -> list[list[Board]]:
    """Entries of one board: partitions (DPX, QPX, CPX) are functions of one place on the bus."""
    groups: dict[object, list[Board]] = {}
    for part in parts:
        groups.setdefault(part.pci_address[:-2] if part.pci_address else part.index, []).append(part)
    return list(groups.values())


def _join_partitions(index: int, members: list[Board]) -> Board:
    """The board that they are parts of: its units are theirs together. Each is told the memory that it can use, which is a part only
    where the memory is divided too (NPS2 and finer)."""
    units = [part.compute_units for part in members]
    sizes = [part.memory_bytes for part in members]
    divided = members[0].memory_partition_mode not in (None, "NPS1")
    known = all(size is not None for size in sizes)
    return replace(
        members[0],
        index=index,
        compute_units=None if None in units else sum(unit or 0 for unit in units),
        memory_bytes=sum(size or 0 for size in sizes) if divided and known else members[0].memory_bytes,
    )


def _list_entries(document: object) -> list[dict[str, object]]:
    # Newer versions wrap the list that older ones print.
    listed = get_mapping(document).get("gpu_data", document)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _parse_amount(value: object) -> int | None:
    """Bytes of ``{"value": 196592, "unit": "MB"}`` (amd-smi's MB are 2^20) or of a text like ``196592 MB``."""
    if isinstance(value, dict):
        size, unit = parse_number(get_text(value.get("value"))), get_text(value.get("unit"))
    else:
        parts = (get_text(value) or "").split()
        size, unit = (parse_number(parts[0]), parts[1]) if len(parts) == 2 else (None, None)
    return int(size * UNITS[unit]) if size and unit in UNITS else None


def _get_plain_text(value: object) -> str | None:
    return get_text(get_mapping(value).get("value")) if isinstance(value, dict) else get_text(value)


def _build_board(index: int, entry: dict[str, object]) -> Board:
    asic, bus, numa = (get_mapping(entry.get(key)) for key in ("asic", "bus", "numa"))
    limit, partition = get_mapping(entry.get("limit")), get_mapping(entry.get("partition"))
    device = parse_integer(get_text(asic.get("device_id")))
    node = parse_integer(get_text(numa.get("node")))
    return Board(
        index=index,
        vendor="amd",
        name=get_text(asic.get("market_name")),
        architecture=get_text(asic.get("target_graphics_version")),
        uuid=get_text(get_mapping(entry.get("driver")).get("uuid")),
        pci_id=f"1002:{device:04x}" if device is not None and 0 <= device < 1 << 16 else None,
        pci_address=(get_text(bus.get("bdf")) or "").lower() or None,
        memory_bytes=_parse_amount(get_mapping(entry.get("vram")).get("size")),
        compute_units=parse_integer(get_text(asic.get("num_compute_units"))),
        numa_node=node if node is not None and node >= 0 else None,
        power_limit_watts=_read_limit(limit, "socket_power", "current_power_limit", "max_power"),
        power_default_watts=_read_limit(limit, "max_power"),
        partition_mode=get_text(partition.get("compute_partition") or partition.get("accelerator_partition")),
        memory_partition_mode=get_text(partition.get("memory_partition")),
        state="ok",
        pcie=Pcie(
            generation_max=GENERATIONS.get(_get_plain_text(bus.get("max_pcie_speed")) or ""),
            width_max=parse_integer(_get_plain_text(bus.get("max_pcie_width"))),
        ),
    )


def _read_limit(limit: dict[str, object], *names: str) -> float | None:
    """Watts of the first that says a number: from version 26 on under ``ppt0``, as ``socket_power_limit``."""
    nested = get_mapping(limit.get("ppt0"))
    for name in names:
        for value in (nested.get(f"{name}_limit"), limit.get(name)):
            if watts := parse_number(_get_plain_text(value)):
                return watts
    return None


def _read_metrics(machine: Machine, notes: Notes) -> dict[int, dict[str, object]]:
    """What changes from moment to moment, by the number of the board."""
    text = run_tool(machine, ("amd-smi", "metric", "--json"), SECONDS, notes, "accelerators.free_memory_bytes")
    return dict(enumerate(_list_entries(parse_json(text))))


def _add_metrics(board: Board, now: dict[str, object]) -> Board:
    link, heat, errors = (get_mapping(now.get(key)) for key in ("pcie", "temperature", "ecc"))
    width = parse_integer(_get_plain_text(link.get("width")))
    # Some boards report no edge sensor; the junction is what throttling goes by.
    hottest = (parse_number(_get_plain_text(heat.get(place))) for place in ("hotspot", "edge"))
    total = _parse_amount(get_mapping(now.get("mem_usage")).get("total_vram"))
    return replace(
        board,
        memory_bytes=board.memory_bytes or total,
        temperature_c=next((degrees for degrees in hottest if degrees is not None), None),
        ecc_errors=parse_integer(_get_plain_text(errors.get("total_uncorrectable_count"))),
        pcie=replace(
            board.pcie,
            generation=GENERATIONS.get(_get_plain_text(link.get("speed")) or ""),
            width=width if width and width <= 32 else None,
        ),
    )


def _read_links(machine: Machine, notes: Notes, board_of: Mapping[int, int]) -> tuple[Link, ...]:
    """XGMI and PCIe pairs of ``amd-smi topology --json``; partitions of one board are not linked to each other."""
    links_by_pair: dict[tuple[int, int], Link] = {}
    text = run_tool(machine, ("amd-smi", "topology", "--json"), SECONDS, notes, "links")
    for entry in _list_entries(parse_json(text)):
        own = parse_integer(get_text(entry.get("gpu")))
        links = entry.get("links")
        for link in links if isinstance(links, list) else []:
            other = parse_integer(get_text(get_mapping(link).get("gpu")))
            a, b = (board_of.get(end, end) if end is not None else None for end in (own, other))
            kind = (get_text(get_mapping(link).get("link_type")) or "").lower()
            if a is not None and b is not None and a != b and kind in ("xgmi", "pcie"):
                pair = (min(a, b), max(a, b))
                links_by_pair[pair] = Link(
                    a=pair[0], b=pair[1], kind=kind, bandwidth_bytes_per_s=_parse_rate(get_mapping(link))
                )
    return tuple(links_by_pair[pair] for pair in sorted(links_by_pair))


def _parse_rate(link: dict[str, object]) -> float | None:
    """One direction of ``"50000-50000"`` megabytes a second: least and most, of which the most is the link's own."""
    match = re.fullmatch(r"(?:\d{1,9}-)?(\d{1,9})", get_text(link.get("bandwidth")) or "")
    return float(match.group(1)) * 1e6 or None if match else None
