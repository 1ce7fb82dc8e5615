"""Which catalogue device a board or a product name is. Pure; an unsure answer is ``None``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hwdetect.maker_tools import get_seller, get_tool_of
from hwdetect.pci_vendors import PCI_VENDORS
from hwdetect.types import Device

# A board reports less than its nominal size: ECC takes 1/16 of GDDR, firmware and retired pages a little more.
MEMORY_TOLERANCE = 0.07
EXACT_MEMORY = 0.01  # for a size that a person typed

# Words that make another product of the same name: left over after a match, they refute it (save the device's own
# architecture: "Blackwell GPU (B200)" is a B200, "RTX 4000 Ada" is no Quadro RTX 4000).
_OTHER_PRODUCTS = """
ti super laptop mobile maxq q d xt xtx gre nvl pcie cnx mig grid vgpu embedded oem le duo pro sff ada blackwell dgxs
fhhl nano nx
"""
DISTINGUISHING = frozenset(_OTHER_PRODUCTS.split())
# Words that tell no product apart.
MAKERS = frozenset(["nvidia", "amd", "intel", "apple", "google", "geforce", "instinct", "tesla", "radeon"])
SERIES = frozenset(["rtx", "gtx", "rx", "arc", "quadro", "sxm", "gpu", "graphics", "accelerator", "device"])
_MEMORY = re.compile(r"^(\d+)gb$")


def normalize_pci_id(vendor: str, pci_id: str | None) -> str | None:
    """``vvvv:dddd`` in lower case, from that form, from NVML's ``0xDDDDVVVV`` or from the bare device id."""
    if not pci_id:
        return None
    text = pci_id.strip().lower().removeprefix("0x")
    maker = PCI_VENDORS.get(vendor)
    if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}.*", text):
        return text[:9]
    if re.fullmatch(r"[0-9a-f]{8}", text):
        return f"{text[4:]}:{text[:4]}"
    if re.fullmatch(r"[0-9a-f]{4}", text) and maker:
        return f"{maker}:{text}"
    return None


def fits_memory(nominal: int | None, reported: int | None, tolerance: float = MEMORY_TOLERANCE) -> bool:
    """Whether a board that reports so much can be one of the nominal size. Unknown contradicts nothing."""
    if nominal is None or reported is None:
        return True
    return abs(reported - nominal) <= tolerance * nominal


def contradicts_readings(device: Device, compute_capability: str | None, memory_bytes: int | None) -> bool:
    """Whether what the board says of itself cannot be this device."""
    known = compute_capability and device.compute_capability
    if known and compute_capability != device.compute_capability:
        return True
    if device.unified_memory or device.memory_bytes is None or memory_bytes is None:
        return False
    without_ecc = memory_bytes / (1 - get_tool_of(device.vendor).ecc_share)
    return not any(fits_memory(device.memory_bytes, round(size)) for size in (memory_bytes, without_ecc))


def is_confirmed(
    device: Device, vendor: str, name: str, compute_capability: str | None, memory_bytes: int | None
) -> bool:
    """Whether a device found by its name is borne out: same vendor, and one agreeing reading at least, or all of its name where its
    memory is the host's, which no board reports: "Jetson AGX Orin" may be that of 32 or that of 64 GB."""
    if device.vendor != get_seller(vendor) or contradicts_readings(device, compute_capability, memory_bytes):
        return False
    if device.unified_memory and memory_bytes is None:
        return {word for word in split_words(device.name) if _MEMORY.match(word)} <= set(split_words(name))
    return bool(compute_capability and device.compute_capability) or memory_bytes is not None


def split_words(text: str) -> tuple[str, ...]:
    """Lower-case words of a product name: ``80 GB`` is one word, and so is ``80G``, ``SXM5`` is ``sxm``, ``RTX4090`` is two."""
    text = text.lower().replace("(r)", " ").replace("(tm)", " ")
    text = re.sub(r"(\d+)\s*(?:gb|gib)(?![a-z0-9])|\b(\d{2,3})g(?![a-z0-9.])", r"\1\2gb", text)
    # "RTX4090" and "RTX-4090" as "rtx 4090": the number is the word that tells products apart.
    text = re.sub(r"\b(rtx|gtx|titan|mi|arc|rx)[\s_-]*(?=[a-z]?\d)", r"\1 ", text)
    # "3080ti" as "3080 ti": the suffix is a product of its own, and refutes a plain 3080.
    text = re.sub(r"\b(\d{3,4})(ti|super|xtx|xt|d)\b", r"\1 \2", text)
    # AMD writes MI300X in one word: the blank put in above (or by a seller) goes.
    parts = re.findall(r"[a-z0-9.]+", text.replace("mi ", "mi"))
    return tuple(re.sub(r"^sxm\d$", "sxm", word).strip(".") for word in parts)


VIRTUAL = re.compile(r"(?:NVIDIA |GRID )?(\w[\w ]*?)-(?:\d{1,2}-)?\d{1,3}[QCABM](?:ME)?\d?")
# Codes of boards in vGPU names: https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/index.html (virtual GPU types)
VIRTUAL_BOARDS = {
    "A100": "A100-SXM4-40GB",
    "A100D": "A100 80GB PCIe",
    "A100X": "A100-SXM4-40GB",
    "A100DX": "A100-SXM4-80GB",
    "H100": "H100 PCIe",
    "H100XM": "H100 80GB HBM3",
    "H100L": "H100 NVL",
    "H200X": "H200",
    "H200XM": "H200",
    "V100D": "Tesla V100-PCIE-32GB",
    "V100DX": "Tesla V100-SXM2-32GB",
    "V100X": "Tesla V100-SXM2-16GB",
    "V100": "Tesla V100-PCIE-16GB",
    "P100": "Tesla P100-PCIE-16GB",
    "P100X": "Tesla P100-SXM2-16GB",
    "RTX6000": "Quadro RTX 6000",
    "RTX8000": "Quadro RTX 8000",
}


def find_physical_name(name: str | None) -> str | None:
    """``A40`` of ``NVIDIA A40-48Q``, ``Tesla T4`` of ``GRID T4-8C``: the board behind a virtual GPU, else ``None``."""
    match = VIRTUAL.fullmatch((name or "").strip())
    if match is None:
        return None
    return VIRTUAL_BOARDS.get(match.group(1), match.group(1))


def select_telling_words(text: str) -> set[str]:
    """The words of a text that can name a product: no maker, no form factor, no single letter."""
    return {word for word in split_words(text) if len(word) > 1} - MAKERS - DISTINGUISHING - SERIES


def names_another(name: str, device: Device) -> bool:
    """Whether ``name`` has a model number that the device's names have not, and one like it in their place: 6750 for 6700."""
    own = {word for text in (device.id, device.name, *device.aliases) for word in split_words(text) if _is_number(word)}
    given = {word for word in split_words(name) if _is_number(word)}
    shapes = {_blank_digits(word) for word in own}
    return bool(given) and not given & own and any(_blank_digits(word) in shapes for word in given)


def _is_number(word: str) -> bool:
    """A model number, such as 6750 or mi210: three digits at least, and no memory size."""
    return len(re.findall(r"\d", word)) >= 3 and not word.endswith("gb")


def _blank_digits(word: str) -> str:
    return re.sub(r"\d", "0", word)


def find_best_match(text: str, devices: Iterable[Device], *, exact: bool = False) -> str | None:
    """The one device whose id, name or alias is in the text with all its words, by most words; ``None`` if unsure.

    ``exact``: the text may hold nothing else but a maker's name and the right memory size.
    """
    present = split_words(text)
    tolerance = EXACT_MEMORY if exact else MEMORY_TOLERANCE
    matches: dict[Device, frozenset[str]] = {}
    for device in devices:
        names = [frozenset(split_words(name)) for name in (device.id, device.name, *device.aliases)]
        inside = [name for name in names if name <= set(present)]
        if inside:
            name = max(inside, key=_count_telling_words)
            # A size that is part of the name was meant by its maker (GH200 480GB: the host's memory).
            if _is_memory_consistent(device, [word for word in present if word not in name], tolerance):
                matches[device] = name
    if not matches:
        return None
    top = max(_count_telling_words(name) for name in matches.values())
    best = [device for device, name in matches.items() if _count_telling_words(name) == top]
    # What no name explains and still tells products apart ("laptop" after an RTX 4090) refutes the match.
    left_over = set(present) - frozenset().union(*(matches[d] for d in best)) - {d.architecture for d in best}
    if exact:
        left_over = {w for w in left_over - MAKERS if not _MEMORY.match(w)}
    refuted = left_over if exact else left_over & DISTINGUISHING
    return None if len(best) > 1 or refuted else best[0].id


def _count_telling_words(name: frozenset[str]) -> int:
    return len(name - MAKERS)


def _is_memory_consistent(device: Device, present: Sequence[str], tolerance: float) -> bool:
    sizes = [int(m.group(1)) for m in map(_MEMORY.match, present) if m]
    if not sizes or device.memory_bytes is None or device.unified_memory:
        return True
    # Sellers write decimal gigabytes, drivers binary ones: either may be meant.
    return any(fits_memory(size * unit, device.memory_bytes, tolerance) for size in sizes for unit in (10**9, 2**30))
