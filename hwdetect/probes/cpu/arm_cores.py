"""Arm core types by implementer and part number, for chips that mix them. Numbers: ``arm_cores.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from hwdetect.probes.cpu.cpuinfo import CpuInfo
from hwdetect.types import CoreKind


@cache
def _load_names() -> dict[tuple[int, int], str]:
    data = tomllib.loads((Path(__file__).parent / "arm_cores.toml").read_text(encoding="utf-8"))
    return {
        (int(implementer, 16), int(part, 16)): name
        for implementer, parts in data["parts"].items()
        for part, name in parts.items()
    }


def count_core_kinds(info: CpuInfo) -> tuple[CoreKind, ...] | None:
    """The core types of the listed CPUs with their counts (1 for the old format, which lists none)."""
    counts: dict[str, int | None] = {}
    # Old kernels print the implementer once, outside of the processors.
    for block in info.blocks or ({},):
        name = find_core_name({**info.common, **block})
        if name is not None:
            counts[name] = (counts.get(name) or 0) + 1
    if not info.blocks:
        counts = dict.fromkeys(counts)
    return tuple(CoreKind(name=name, cpus=cpus) for name, cpus in sorted(counts.items())) or None


def find_core_name(fields: dict[str, str]) -> str | None:
    """The core's name, or ``0x51/0x803`` for one that the table lacks."""
    try:
        implementer, part = int(fields["CPU implementer"], 16), int(fields["CPU part"], 16)
    except (KeyError, ValueError):
        return None
    named = _load_names().get((implementer, part))
    # Implementers are 8 bits and parts 12 (Arm, MIDR_EL1): the widths that Arm's own tables print.
    return named or f"{implementer:#04x}/{part:#05x}"
