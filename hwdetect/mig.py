"""MIG instances of NVIDIA's boards, from ``mig.toml``, and how people write them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache

from hwdetect.types import Device

MIB = 1 << 20
# What the driver leaves an instance of its share: 9,984 of 10,195 MiB (H100, 1g.10gb), 4,864 of 5,120 (A100, 1g.5gb), 16,384 of
# 17,971 (H200, 1g.18gb, as its users print it). The smallest of them, where no source has the size.
LEFT_OF_SHARE = 0.91
LEFT_OF_BOARD = 0.98  # of the largest instance: 80,384 of 81,920 MiB (A100, 7g.80gb), 81,152 of 81,559 (H100)
# How far the memory of a profile may be from what the driver reports, by whether its size is derived: versions differ by MiB.
SAME_MEMORY = {False: 0.02, True: 0.1}

# "h100-mig-1g.10gb", "a100:3g.40gb", "nvidia h200 mig 1g.18gb" (what PyTorch prints), "a100-3g.20gb".
_SPELLING = re.compile(
    r"(?P<board>[^:+,]*?)(?:[\s:_-]*mig[\s:_-]*|[\s:_-]+)(?P<part>\d{1,2}c\.)?(?P<profile>\d{1,2}g\.\d{1,4}gb)"
    r"(?P<suffix>(?:\+me\.all|\+me|\+gfx|-me)?)(?P<rest>.*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelled:
    """A MIG instance as a text names it: the board's name, ``3g.40gb``, what follows it (``+me``), and the rest of the text.

    ``part`` is ``1c.`` of a compute instance, which has a part of its GPU instance's multiprocessors and all of its memory.
    """

    board: str
    profile: str
    suffix: str
    part: str
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An instance of a board: its multiprocessors, bytes of memory, how many fit. ``derived``: no source has its bytes."""

    name: str
    units: int
    memory_bytes: int
    most: int
    derived: bool
    source: str


def split_spelling(text: str) -> Spelled | None:
    """The MIG instance that a lower-case text names, ``None`` where it names none."""
    match = _SPELLING.fullmatch(text)
    if match is None:
        return None
    board, profile, suffix, part, rest = (match[name] or "" for name in ("board", "profile", "suffix", "part", "rest"))
    return Spelled(board=board.strip(), profile=profile, suffix=suffix, part=part, rest=rest)


@cache
def _read_families() -> dict[str, dict]:
    from importlib.resources import files  # only those who plan for an instance pay for it

    data = tomllib.loads((files("hwdetect") / "mig.toml").read_text(encoding="utf-8"))
    return {device: family for family in data["family"] for device in family["devices"]}


def list_boards() -> tuple[str, ...]:
    """Ids of the devices that have MIG instances."""
    return tuple(_read_families())


def list_profiles(device: Device) -> tuple[Profile, ...]:
    """The instances that a board can be divided into; empty where it cannot, or where nobody has written them down."""
    family = _read_families().get(device.id)
    if family is None or device.memory_bytes is None or device.compute_units is None:
        return ()
    return tuple(_make_profile(device, family, name, row) for name, row in family["profiles"].items())


def find_profile(device: Device, label: str) -> Profile | None:
    """The instance that ``nvidia-smi -L`` calls so (``1g.10gb+me``); ``None`` also of a compute instance (``1c.3g.40gb``), which has a
    part of it."""
    name = re.sub(r"[+-]me(\.all)?$|\+gfx$", "", label)
    return next((profile for profile in list_profiles(device) if name == profile.name), None)


def name_profile(device: Device, units: int, memory_bytes: int | None) -> str | None:
    """``3g.20gb`` of what an instance has, where one profile alone has that; of a compute instance, whose memory is that of its whole GPU
    instance, ``None``."""
    fits = [
        profile.name
        for profile in list_profiles(device)
        if profile.units == units
        and (memory_bytes is None or abs(profile.memory_bytes / memory_bytes - 1) < SAME_MEMORY[profile.derived])
    ]
    return fits[0] if len(fits) == 1 else None


def _make_profile(device: Device, family: dict, name: str, row: dict) -> Profile:
    assert device.memory_bytes is not None and device.compute_units is not None
    slices = int(name.partition("g")[0])
    units = row.get("units", slices * family["units_per_slice"])
    share = row["memory_share"] * (LEFT_OF_BOARD if row["memory_share"] == 1.0 else LEFT_OF_SHARE)
    return Profile(
        name=name,
        units=min(units, device.compute_units),
        memory_bytes=row["mib"] * MIB if "mib" in row else round(device.memory_bytes * share),
        most=row["most"],
        derived="mib" not in row,
        source=family["source"],
    )
