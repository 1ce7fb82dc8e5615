"""The oldest NVIDIA driver that a torch build runs with.

Source: CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
Compatibility", https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html (Linux column).
"""

from __future__ import annotations

import re

LEAST = {13: (580, 65, 6), 12: (525, 60, 13), 11: (450, 80, 2)}


def get_least_driver(build: str | None) -> str | None:
    """``580.65.06`` for ``cu130``; ``None`` for a build that needs no NVIDIA driver or is not known."""
    match = re.fullmatch(r"cu(\d{2})\d", build or "")
    version = LEAST.get(int(match.group(1))) if match else None
    return f"{version[0]}.{version[1]:02d}.{version[2]:02d}" if version else None


def is_older(driver: str, needed: str) -> bool:
    """Whether a driver version is below another. Windows versions (two parts) compare by their first number alone."""
    have, want = (tuple(int(n) for n in re.findall(r"\d+", text)) for text in (driver, needed))
    # Windows: 581.15 and Linux 580.65.06 are of one branch, their second numbers are not comparable.
    return have[:1] < want[:1] if len(have) < 3 else have < want
