"""The device catalogue: ``devices/<id>.toml``, one accelerator a file, read as data.

``load`` parses the one file that it needs; an alias or a match first greps the raw texts (a few milliseconds) and
parses only the files that contain what is looked for. How a file is written is in ``devices/README.md``.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache

from hwdetect.catalog.cpu import describe_cpu
from hwdetect.catalog.matching import (
    contradicts_readings,
    find_best_match,
    is_confirmed,
    names_another,
    normalize_pci_id,
    select_telling_words,
    split_words,
)
from hwdetect.topology import get_pcie_bytes_per_s
from hwdetect.types import Device

__all__ = [
    "UnknownDevice",
    "describe_cpu",
    "find_close_names",
    "list_alike",
    "list_devices",
    "list_ids",
    "load",
    "match",
    "match_text",
    "resolve",
]


_NUMBER = re.compile(r"\d{3,4}[a-z]*|[ab]\d{3}|v\d[ep]?")
_SERIES = re.compile(r"^(?:rtx|gtx|rx|arc|tpu)-")
_SLUG = re.compile(r"[a-z0-9]+(?:[ _-][a-z0-9]+)*")


class UnknownDevice(KeyError):
    """No file and no alias of that name. ``close`` are the nearest names that exist."""

    def __init__(self, device_id: str, close: tuple[str, ...]):
        super().__init__(device_id)
        self.device_id, self.close = device_id, close

    def __str__(self) -> str:
        close = f"; close to it: {', '.join(self.close)}" if self.close else ""
        return f"no device {self.device_id!r} in the catalogue{close}"


@cache
def read_texts() -> dict[str, str]:
    """The raw text of every device file by id, in the order of the ids."""
    return {device_id: _read_text(device_id) for device_id in list_ids()}


@cache
def list_ids() -> tuple[str, ...]:
    """Every device id, from the file names alone."""
    names = (entry.name for entry in _find_folder().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@cache
def resolve(name: str) -> str | None:
    """The id that an id or alias stands for; ``None`` if there is none.

    Case, blanks and hyphens are forgiven (``RTX4090``), and so is a maker's name before or a right memory size after it
    (``nvidia-l4-24gb``). What the vendor's tool prints is a name too (``Tesla T4``), and a number is one that a single
    product of the makers' series has (``4090``, ``3090ti``, ``b580``, ``v6e``).
    """
    wanted = " ".join(name.lower().split())
    if wanted in list_ids():
        return wanted
    for device_id, text in _read_heads().items():
        if f'"{wanted}"' in text and wanted in (
            _parse_device(device_id).name.lower(),
            *_parse_device(device_id).aliases,
        ):
            return device_id
    squeezed = _strip_separators(wanted)
    same = [device_id for device_id in list_ids() if _strip_separators(device_id) == squeezed]
    if not same and _NUMBER.fullmatch(squeezed):
        same = [device_id for device_id in list_ids() if _strip_separators(_SERIES.sub("", device_id)) == squeezed]
    if same or not _SLUG.fullmatch(wanted):
        return same[0] if len(same) == 1 else None
    return find_best_match(wanted, _list_candidates(wanted), exact=True)


@cache
def list_alike(name: str) -> tuple[str, ...]:
    """The ids that begin with a name that is no id itself: what else a short one could have meant (``h100``)."""
    wanted = "-".join(name.lower().replace("_", "-").split())
    return () if wanted in list_ids() else tuple(i for i in list_ids() if i.startswith(f"{wanted}-"))


def load(device_id: str) -> Device:
    """The device of that id or alias (``h200``); raises ``UnknownDevice``."""
    known_id = resolve(device_id)
    if known_id is None:
        raise UnknownDevice(device_id, find_close_names(device_id))
    return _parse_device(known_id)


@cache
def list_devices() -> tuple[Device, ...]:
    """Every device, in the order of the ids (tens of milliseconds on the first call)."""
    return tuple(_parse_device(device_id) for device_id in list_ids())


def match(
    vendor: str,
    name: str | None,
    pci_id: str | None,
    compute_capability: str | None,
    memory_bytes: int | None,
) -> str | None:
    """The catalogue id of a board, or ``None`` for one that is not known.

    A known PCI id decides, unless compute capability or memory contradict it; where it is shared by several
    products, memory and then the name tell them apart; a name with another model number
    (RX 6750 XT, 6700 XT) refutes it. Otherwise the name must mean a device, and compute
    capability or memory must confirm it and none contradict: a name alone is no proof. ``pci_id`` may be ``10de:20b2``,
    NVML's ``0x20B210DE`` or the bare device ``0x20b2``. Pass ``memory_bytes=None`` for a slice of a board.
    """
    wanted = normalize_pci_id(vendor, pci_id)
    listed = [_parse_device(i) for i, text in read_texts().items() if f'"{wanted}"' in text] if wanted else []
    # An id can be shared (A2 and A16): what contradicts the readings goes, names decide among the rest.
    left = [device for device in listed if not contradicts_readings(device, compute_capability, memory_bytes)]
    if left:
        return _choose_by_name(left, name)
    meant = match_text(name) if name else None
    if meant is None:
        return None
    device = _parse_device(meant)
    return meant if is_confirmed(device, vendor, name or "", compute_capability, memory_bytes) else None


@cache
def match_text(text: str) -> str | None:
    """The device that a free-text product name means ("NVIDIA H200-SXM5-141GB"), or ``None``."""
    return find_best_match(text, _list_candidates(text))


def _list_candidates(text: str) -> list[Device]:
    """The devices with a telling word of the text in their names: a few files to parse instead of all."""
    telling = select_telling_words(text)
    return [
        _parse_device(device_id) for device_id, head in _read_heads().items() if any(word in head for word in telling)
    ]


@cache
def _read_heads() -> dict[str, str]:
    """By id, the lower-case part of each file that holds its names: what stands before the first table."""
    return {
        device_id: f"{device_id}\n{text.partition(chr(10) + '[')[0]}".lower()
        for device_id, text in read_texts().items()
    }


def _choose_by_name(left: list[Device], name: str | None) -> str | None:
    if len(left) > 1:
        return find_best_match(name, left) if name else None
    return None if name and names_another(name, left[0]) else left[0].id


def _strip_separators(name: str) -> str:
    return name.replace("-", "").replace("_", "").replace(" ", "")


def find_close_names(name: str) -> tuple[str, ...]:
    """Ids with every word of a name that is none (``xavier``), else ids and aliases that are nearest to it."""
    wanted = " ".join(name.lower().split())
    words = set(split_words(wanted))
    if words and (holding := [i for i in list_ids() if words <= set(split_words(i))]):
        return tuple(holding[:4])
    names = set(list_ids()) | {alias for device in list_devices() for alias in device.aliases}
    return tuple(difflib.get_close_matches(wanted, sorted(names), n=4, cutoff=0.6))


@cache
def _find_folder():
    from importlib.resources import files  # costs milliseconds: only those who read devices pay

    return files("hwdetect") / "devices"


def _read_text(device_id: str) -> str:
    return (_find_folder() / f"{device_id}.toml").read_text(encoding="utf-8")


@cache
def _parse_device(device_id: str) -> Device:
    data = tomllib.loads(_read_text(device_id))
    memory, link, pcie = data.get("memory", {}), data.get("link", {}), data.get("pcie", {})
    compute = data.get("compute", {})
    return Device(
        id=device_id,
        vendor=data["vendor"],
        name=data["name"],
        kind=data.get("kind", "gpu"),
        architecture=data.get("architecture"),
        aliases=tuple(data.get("aliases", ())),
        pci_ids=tuple(data.get("pci", {}).get("ids", ())),
        compute_capability=compute.get("capability"),
        memory_bytes=memory.get("bytes"),
        memory_kind=memory.get("kind"),
        memory_bytes_per_s=memory.get("bytes_per_s"),
        unified_memory=memory.get("unified", False),
        l2_bytes=memory.get("l2_bytes"),
        compute_units=compute.get("units"),
        tiles=compute.get("tiles", 1),
        peak_flops=_parse_rates(data.get("peak_flops", {})),
        vector_flops=_parse_rates(data.get("vector_flops", {})),
        link_kind=link.get("kind"),
        link_bytes_per_s=link.get("bytes_per_s"),
        link_count=link.get("count"),
        link_bridge=link.get("bridge", False),
        link_rack=link.get("rack"),
        p2p=link.get("p2p"),
        pcie_generation=pcie.get("generation"),
        pcie_width=pcie.get("width"),
        host_bytes_per_s=data.get("host", {}).get("bytes_per_s")
        or get_pcie_bytes_per_s(pcie.get("generation"), pcie.get("width")),
        tdp_watts=data.get("power", {}).get("tdp_watts"),
        market=data.get("market"),
        sources=_parse_sources(data),
        basis=data.get("basis", "published"),
    )


def _parse_rates(table: dict) -> tuple[tuple[str, float], ...]:
    return tuple((dtype, float(rate)) for dtype, rate in table.items() if dtype not in ("source", "sources"))


def _parse_sources(data: dict) -> tuple[tuple[str, str], ...]:
    """Pairs of dotted field name and URL, those of the rates first: a table's ``source``, or one of its ``sources``."""
    pairs = []
    for table, fields in sorted(data.items(), key=lambda item: item[0] != "peak_flops"):
        if isinstance(fields, dict) and table != "arithmetic":  # behind the rates, and no field of a Device
            given = fields.get("sources", {})
            for key in fields:
                if key not in ("source", "sources"):
                    pairs.append((f"{table}.{key}", given.get(key) or fields.get("source", "")))
    return tuple(pairs)
