"""CPU lists (``0-3,8``) and masks (``0000000f,00000000``) as the kernel writes them."""

from __future__ import annotations

import re

MAX_CPU = 1 << 16  # Linux is built for 8192 at most; a larger number is a broken file, not a machine

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6})/(\d{1,6}))?)?", re.ASCII)


def parse_cpu_list(text: str | None) -> frozenset[int] | None:
    """The numbers of a list; empty for an empty list, ``None`` for no or broken text. Stray white space is nothing."""
    if text is None:
        return None
    cpus: set[int] = set()
    for part in "".join(text.split()).split(","):
        if not part:
            continue
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first, last, used, group = (int(g) if g else None for g in match.groups())
        assert first is not None
        last = first if last is None else last
        if last < first or last > MAX_CPU:
            return None
        numbers = range(first, last + 1)
        if used is not None and group:  # "0-15:2/4": the first 2 of every 4
            numbers = [n for n in numbers if (n - first) % group < used]
        cpus.update(numbers)
    return frozenset(cpus)


def parse_cpu_mask(text: str | None) -> frozenset[int] | None:
    """The numbers of a mask of comma-separated 32-bit words (fewer digits in the first word are usual)."""
    if text is None:
        return None
    words = "".join(text.split()).removeprefix("0x").split(",")
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,16}", word) for word in words):
        return None
    # Words after the first are 32 bits wide even where their leading zeros are not printed.
    bits = int("".join(word.zfill(8) for word in words), 16)
    if bits.bit_length() > MAX_CPU:
        return None
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


def format_cpu_list(cpus: frozenset[int]) -> str:
    """``0-3,8`` for a set."""
    parts: list[str] = []
    start = previous = None
    for cpu in sorted(cpus):
        if previous is not None and cpu == previous + 1:
            previous = cpu
            continue
        if start is not None:
            parts.append(f"{start}-{previous}" if previous != start else f"{start}")
        start = previous = cpu
    if start is not None:
        parts.append(f"{start}-{previous}" if previous != start else f"{start}")
    return ",".join(parts)
