"""What planning and emission must know of a maker's accelerators: one file a vendor, found by import (CONTRIBUTING.md).

Nothing outside of this folder compares a vendor's name or the device string of PyTorch: who must know asks for an ability.
Beside its file a vendor needs device files (hwdetect/devices), a probe (hwdetect/probes) and builds of torch (stacks.toml).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from generator.case.vendors.cpu import CPU
from generator.case.vendors.vendor import ABILITIES, PYTORCH, Container, Skeleton, Toolkit, Vendor
from generator.errors import UsageError

__all__ = [
    "ABILITIES",
    "CPU",
    "PYTORCH",
    "Container",
    "Skeleton",
    "Toolkit",
    "Vendor",
    "choose_vendor",
    "find_vendor",
    "list_frameworks",
    "list_vendors",
]


@cache
def list_vendors() -> tuple[Vendor, ...]:
    """Those of accelerators, by name: of each module of this folder its ``VENDORS``."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    vendors = [vendor for module in modules for vendor in getattr(module, "VENDORS", ())]
    return tuple(sorted(vendors, key=lambda vendor: vendor.name))


def find_vendor(maker: str, kind: str = "gpu") -> Vendor | None:
    """Who plans for a maker's devices of this kind, or ``None``; both as hwdetect names them (``Device.vendor``, ``Device.kind``)."""
    return next((vendor for vendor in list_vendors() if (maker, kind) in vendor.devices), None)


def list_frameworks() -> tuple[str, ...]:
    """What may be asked for."""
    return tuple(sorted({CPU.framework, *(vendor.framework for vendor in list_vendors())}))


def choose_vendor(maker: str, kind: str, framework: str | None) -> Vendor | None:
    """As ``find_vendor``, and for a CPU; of those with the ``framework`` that was asked for. Raises ``UsageError`` where it has not that."""
    plain = CPU if kind == "cpu" else find_vendor(maker, kind)
    if plain is None or framework in (None, plain.framework):
        return plain
    if kind == "cpu" or (framework and find_vendor(framework, kind)):
        return find_vendor(framework or "", kind)
    raise UsageError(
        f"--framework {framework} is not for {plain.title}s", f"leave it out: {plain.framework} is what runs there"
    )
