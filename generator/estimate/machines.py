"""The machine of a row: its device, what of the memory can be used, and the rate between nodes."""

from __future__ import annotations

import re
from dataclasses import replace

from generator.cost.constants import COLLECTIVE_REALISED
from generator.cost.estimate import GIB
from generator.estimate.cells import Uncostable, read_count
from hwdetect.types import Device

USABLE_SHARE = 0.99
"""what the driver leaves of a board's nominal memory (A100-80GB: 81251 of 81920 MiB)"""
PART_OR_SEVERAL = re.compile(r"mig|:|\b\dg\.|^\s*\d+\s*x\s", re.IGNORECASE)
"""What makes of a product's name another amount of it: an instance of MIG, several boards."""


def read_device(get) -> tuple[Device, int]:
    from hwdetect import catalog

    name = get("device", "")
    if not name:
        raise Uncostable("the device is not stated")
    known = catalog.resolve(name) or (None if PART_OR_SEVERAL.search(name) else catalog.match_text(name))
    if known is None:
        near = ", ".join(catalog.find_close_names(name))
        raise Uncostable(f"the device {name!r} is not in the catalogue{f'; near it are {near}' if near else ''}")
    device = catalog.load(known)
    limit = re.search(r"\((\d+) ?W\b", get("device_text", ""))
    if limit:  # below what the board may take
        device = replace(device, tdp_watts=float(limit[1]))
    nominal = get("device_memory_gb", "")
    memory = read_count(get, "device_memory_gb") * GIB if nominal else float(device.memory_bytes or 0)
    if not memory:
        raise Uncostable(f"the memory of {name} is not stated")
    return device, int(memory * USABLE_SHARE)


NETWORKS = {
    # 4 x 100 Gbit/s RoCE (doc/en/train_performance.md of InternLM)
    "internlm": 4 * 100e9 / 8,
    # all-reduce of 64 devices on 16 nodes: 44 to 57 Gbit/s in a long run, of 400 on paper (experiments/bandwidth of bigscience);
    # a ring passes 2 x 63 / 64 times as much, at COLLECTIVE_REALISED of its link
    "bigscience": 50.5e9 / 8 * 2 * 63 / 64 / COLLECTIVE_REALISED,
}
"""bytes per second of a node, by how a row's group begins, where the source says it elsewhere than in the row"""


def read_network(get) -> float | None:
    """Stated, or ports and Gbit/s of a node in the row's own words, such as 4x100Gb RoCE per node."""
    if get("network_gbit_s", ""):
        return read_count(get, "network_gbit_s") * 1e9 / 8
    words = re.search(r"\b(\d+)x(\d+)Gb (?:RoCE|IB)\b", get("notes", ""))
    if words:
        return int(words[1]) * int(words[2]) * 1e9 / 8
    return next((rate for name, rate in NETWORKS.items() if get("group", "").startswith(name)), None)
