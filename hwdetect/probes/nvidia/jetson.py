"""Which Jetson a machine is: the device tree names the kit, its module's number the product, and the memory the size."""

from __future__ import annotations

import re
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes.parsing import clean_line, parse_pairs
from hwdetect.types import Board

# What a module's number begins with (https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/IN/QuickStart.html; numbers as in
# rbonghi/jetson_stats, jtop/core/jetson_variables.py, opened 2026-11-25). The last two digits tell sizes, and lids.
MODULES = {
    "p2888": "AGX Xavier",
    "p3668": "Xavier NX",
    "p3701": "AGX Orin",
    "p3767-0000": "Orin NX",
    "p3767-0001": "Orin NX",
    "p3767": "Orin Nano",
    "p3834": "AGX Thor",
}
SIZES = {"p3701-0004": 32, "p3701-0005": 64, "p3701-0008": 64, "p3767-0000": 16, "p3767-0001": 8, "p3767-0003": 8,
         "p3767-0004": 4, "p3767-0005": 8, "p2888-0004": 32, "p2888-0001": 16, "p3668-0001": 8, "p3668-0003": 16}  # fmt: skip
"""GB of a module, for where the memory cannot be read"""
FAMILIES = re.compile(r"(AGX (?:Orin|Xavier|Thor)|(?:Orin|Xavier) NX|Orin Nano)\b", re.IGNORECASE)
OF_TEGRA = re.compile(r"\(nvgpu\)|NVIDIA Thor", re.IGNORECASE)
"""what NVIDIA's tools call the GPU of such a chip, from JetPack 6 on: no product"""
SOLD_GB = (4, 8, 16, 32, 64, 128)


def read_jetson(machine: Machine) -> Board | None:
    """A Jetson without its tools; its GPU shares the memory of the processor."""
    model = clean_line(machine.read("proc/device-tree/model")) or ""
    if not re.search(r"jetson|orin|xavier|thor", model, re.IGNORECASE):
        return None
    return Board(index=0, vendor="nvidia", name=_name_product(machine, model), unified_memory=True)


def name_jetson(machine: Machine, boards: tuple[Board, ...]) -> tuple[Board, ...]:
    """The one board of a Jetson, which the tools call by its chip, by the name of the product."""
    if len(boards) != 1 or not OF_TEGRA.search(boards[0].name or ""):
        return boards
    jetson = read_jetson(machine)
    return (replace(boards[0], name=jetson.name, unified_memory=True),) if jetson else boards


def _name_product(machine: Machine, model: str) -> str:
    """``NVIDIA Jetson AGX Orin 32GB`` of a developer kit whose module or memory is that; the kit's own name where neither tells."""
    numbers = re.findall(r"p\d{4}-\d{4}", machine.read("proc/device-tree/compatible") or "")
    module = next((number for number in numbers if _find_family(number)), "")
    match = FAMILIES.search(model)
    family = _find_family(module) or (match.group(1) if match else None)
    stated = re.search(r"\b(\d{1,3}) ?GB\b", model, re.IGNORECASE)
    gigabytes = _read_gigabytes(machine) or SIZES.get(module) or (int(stated.group(1)) if stated else None)
    if family is None:
        return model
    if "super" in model.lower() and family == "Orin Nano":
        return f"NVIDIA Jetson {family} Super"
    return f"NVIDIA Jetson {family}" + (f" {gigabytes}GB" if gigabytes and family != "AGX Thor" else "")


def _find_family(module: str) -> str | None:
    return MODULES.get(module) or MODULES.get(module[:5])


def _read_gigabytes(machine: Machine) -> int | None:
    """The smallest size sold that what Linux sees is a part of: firmware keeps some."""
    match = re.match(r"(\d{1,18}) kB", parse_pairs(machine.read("proc/meminfo")).get("MemTotal", ""))
    total = int(match.group(1)) * 1024 if match else 0
    return next((size for size in SOLD_GB if 0 < total <= size << 30), None)
