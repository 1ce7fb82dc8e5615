"""What is wrong or wasteful about a machine, from its values alone."""

from __future__ import annotations

from hwdetect.types import Finding, Hardware


def of(hardware: Hardware) -> tuple[Finding, ...]:
    return ()
