"""What a configuration costs: named items, each with the basis of its number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from generator.cost.interval import Interval

GIB = float(1 << 30)
BASES = ("measured", "published", "derived", "assumed")
"""From strongest to weakest; a sum is as good as its weakest item."""


def find_weakest_basis(bases: Iterable[str]) -> str:
    """The weakest of ``bases``; ``derived`` for an empty sum."""
    return max(bases, key=BASES.index, default="derived")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """One item of a sum: GiB in ``Estimate.memory`` and ``host_memory``, seconds per optimizer step in ``time``.

    ``source`` says where the formula or its constant comes from.
    """

    name: str
    value: float
    basis: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Cost of one configuration on one device of the case.

    ``memory`` adds up to what the device must hold at peak, context and fragmentation included;
    ``allocator_peak_gib`` is what ``torch.cuda.max_memory_allocated`` would say (no context, no fragmentation).
    ``limit_gib`` is what the device (or, on CPU, the process) may use. ``time`` adds up to one optimizer step
    (training) or one generated batch (inference); ``tokens_per_step`` counts over all devices.
    """

    memory: tuple[CostItem, ...]
    allocator_peak_gib: float
    limit_gib: float
    host_memory: tuple[CostItem, ...] = ()
    host_limit_gib: float | None = None
    time: tuple[CostItem, ...] = ()
    tokens_per_step: float = 0.0
    devices: int = 1
    ttft_seconds: float = 0.0
    """of a served model: from a request to its first token"""
    seconds_per_token: float = 0.0
    """and between two tokens of an answer"""
    time_interval: Interval | None = None
    allocator_interval: Interval | None = None
    """what published runs of the kind were, as factors; ``None``: none was measured"""

    @property
    def peak_memory_gib(self) -> float:
        return sum(item.value for item in self.memory)

    @property
    def headroom_gib(self) -> float:
        return self.limit_gib - self.peak_memory_gib

    @property
    def fits(self) -> bool:
        return self.fullness <= 1.0

    @property
    def fullness(self) -> float:
        """What it needs as a share of what there is, of device or host memory, whichever is scarcer."""
        host = sum(item.value for item in self.host_memory)
        return max(self.peak_memory_gib / self.limit_gib, host / self.host_limit_gib if self.host_limit_gib else 0.0)

    @property
    def step_seconds(self) -> float:
        return sum(item.value for item in self.time)

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """P10 and P90."""
        known = self.time_interval
        return (self.step_seconds * known.low, self.step_seconds * known.high) if known else None

    @property
    def peak_memory_range(self) -> tuple[float, float] | None:
        """P10 and P90 in GiB. What the allocator does not hold is taken as it is."""
        known, peak, rest = self.allocator_interval, self.allocator_peak_gib, self.peak_memory_gib
        return (rest + (known.low - 1.0) * peak, rest + (known.high - 1.0) * peak) if known else None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_step / self.step_seconds if self.step_seconds else 0.0

    @property
    def basis(self) -> str:
        return find_weakest_basis(item.basis for item in (*self.memory, *self.time))
