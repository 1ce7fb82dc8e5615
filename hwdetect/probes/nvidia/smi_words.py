"""How nvidia-smi writes its readings, in all of its outputs: amounts, switches, places, and the ways of saying nothing."""

from __future__ import annotations

import re

from hwdetect.probes import parsing
from hwdetect.probes.parsing import clean_line

NO_DEDICATED_MEMORY = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra|nvgpu)\b", re.IGNORECASE)


# The many ways of saying that there is no reading. "None" is one only where it stands alone.
NO_READING = re.compile(
    r"\[?(n/?a|not supported|not available|unknown|unknown error|none|err!|requested functionality.*|insufficient permissions"
    r"|no permission|gpu is lost.*|gpu requires reset.*|function not found|no data|deprecated|.* has been deprecated.*)\]?",
    re.IGNORECASE,
)


def get_reading(text: str | None) -> str | None:
    """A reading, or ``None`` for the many ways of saying that there is none."""
    value = clean_line(text)
    return None if value is None or NO_READING.fullmatch(value) else value


def parse_switch(text: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((get_reading(text) or "").lower())


def parse_mebibytes(text: str | None) -> int | None:
    return parsing.parse_mebibytes(get_reading(text))


def parse_width(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,2})x?", get_reading(text) or "")
    return int(match.group(1)) if match else None


def parse_version(text: str | None) -> str | None:
    match = re.match(r"\d+(\.\d+)*", get_reading(text) or "")
    return match.group(0) if match else None


def parse_pci_id(text: str | None) -> str | None:
    """``10de:2330`` from NVML's ``233010DE`` (a vendor's own tool prints other things in that place: refused)."""
    digits = (text or "").lower().removeprefix("0x")
    # Device first, vendor last: one 32-bit register.
    return f"10de:{digits[:4]}" if re.fullmatch(r"[0-9a-f]{4}10de", digits) else None


def parse_address(text: str | None) -> str | None:
    """``0000:3b:00.0`` from ``00000000:3B:00.0`` (a domain of 32 bits is kept where it needs them)."""
    match = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.(\d)", (text or "").strip())
    if match is None:
        return None
    domain = match.group(1).lower().lstrip("0").zfill(4)
    return f"{domain}:{match.group(2).lower()}:{match.group(3).lower()}.{match.group(4)}"
