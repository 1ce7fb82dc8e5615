"""``rocm-smi -a --json``: keys change their case and words between ROCm versions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hwdetect.machine.protocol import Machine
from hwdetect.probes.amd.kfd import drop_integrated
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.parsing import get_mapping, get_text, parse_integer, parse_json, parse_number
from hwdetect.probes.partial import NOTHING, PartialHardware
from hwdetect.probes.pci import GENERATIONS
from hwdetect.types import Accelerator, Board, Link, Pcie, Software

SECONDS = 2.5
LINK = re.compile(r"\(topology\) link type between drm devices (\d{1,4}) and (\d{1,4})")


def read_rocm_smi(machine: Machine, notes: Notes) -> PartialHardware:
    text = run_tool(machine, ("rocm-smi", "-a", "--json"), SECONDS, notes, "boards")
    if text is None:
        return NOTHING
    document = get_mapping(parse_json(text))
    cards = {
        int(match.group(1)): _lower_keys(get_mapping(value))
        for key, value in document.items()
        if (match := re.fullmatch(r"card(\d{1,4})", key))
    }
    if not cards:
        note_no_board(notes, "rocm-smi", text)
        return NOTHING
    system = _lower_keys(get_mapping(document.get("system")))
    boards = tuple(_build_board(index, card) for index, card in sorted(cards.items()))
    # Links stand under "system", not under the cards that they join.
    links = _parse_links(system)
    named = {end for link in links for end in (link.a, link.b)}
    if missing := sorted(named - set(cards)):
        notes.add(
            "boards", "rocm-smi", f"its links name {len(named)} devices, it describes {len(cards)} ({missing} missing)"
        )
    return PartialHardware(
        boards=boards,
        accelerators=drop_integrated(boards, tuple(_build_accelerator(b, cards[b.index]) for b in boards)),
        links=links,
        software=Software(driver=get_text(system.get("driver version"))),
    )


def _lower_keys(values: Mapping[str, object]) -> dict[str, object]:
    return {key.lower(): value for key, value in values.items()}


def _get_name(card: Mapping[str, object], *keys: str) -> str | None:
    """The first readable name: an id in place of a name (``0x1002``) is none."""
    texts = (get_text(card.get(key)) for key in keys)
    return next((text for text in texts if text and not text.lower().startswith("0x")), None)


def _format_uuid(text: str | None) -> str | None:
    """``GPU-b8bfb3bbbe7d1cd4`` of ``0xb8bfb3bbbe7d1cd4``: the form that ROCR_VISIBLE_DEVICES takes."""
    digits = (text or "").lower().removeprefix("0x")
    return f"GPU-{digits.zfill(16)}" if re.fullmatch(r"[0-9a-f]{1,16}", digits) and digits.strip("0") else None


def _find_device_id(card: Mapping[str, object]) -> object:
    """ROCm 6 tells it as the model, with the subsystem beside it; in ROCm 5 the model was the subsystem's id."""
    return card.get("device id") or card.get("gpu id") or (card.get("card model") if "subsystem id" in card else None)


def _build_board(index: int, card: Mapping[str, object]) -> Board:
    device = parse_integer(get_text(_find_device_id(card)))
    link = re.search(r"\((\d+(?:\.\d)?)\s*GT/s\s*x(\d{1,2})\)", get_text(card.get("pcie clock level")) or "")
    node = parse_integer(get_text(card.get("(topology) numa node")))
    total = parse_integer(get_text(card.get("vram total memory (b)")))
    return Board(
        index=index,
        vendor="amd",
        name=_get_name(card, "card series", "device name", "card model"),
        uuid=_format_uuid(get_text(card.get("unique id"))),
        pci_id=f"1002:{device:04x}" if device is not None and 0 <= device < 1 << 16 else None,
        pci_address=(get_text(card.get("pci bus")) or "").lower() or None,
        architecture=_get_name(card, "gfx version"),
        memory_bytes=total or None,
        numa_node=node if node is not None and 0 <= node < 1 << 16 else None,
        power_limit_watts=parse_number(get_text(card.get("max graphics package power (w)"))),
        temperature_c=parse_number(
            get_text(card.get("temperature (sensor junction) (c)") or card.get("temperature (sensor edge) (c)"))
        ),
        partition_mode=get_text(card.get("compute partition")),
        memory_partition_mode=get_text(card.get("memory partition")),
        state="ok",
        pcie=Pcie(generation=GENERATIONS.get(link.group(1)), width=int(link.group(2))) if link else Pcie(),
    )


def _build_accelerator(board: Board, card: Mapping[str, object]) -> Accelerator:
    used = parse_integer(get_text(card.get("vram total used memory (b)")))
    free = board.memory_bytes - used if board.memory_bytes is not None and used is not None else None
    return Accelerator(
        index=0,
        board=board.index,
        name=board.name,
        memory_bytes=board.memory_bytes,
        free_memory_bytes=free,
        uuid=board.uuid,
        compute_share=1.0,
    )


def _parse_links(system: Mapping[str, object]) -> tuple[Link, ...]:
    links = []
    for key, value in system.items():
        match = LINK.fullmatch(key)
        kind = {"xgmi": "xgmi", "pcie": "pcie"}.get((get_text(value) or "").lower())
        if match and kind and match.group(1) != match.group(2):
            a, b = sorted((int(match.group(1)), int(match.group(2))))
            links.append(Link(a=a, b=b, kind=kind))
    return tuple(sorted(set(links), key=lambda link: (link.a, link.b)))
