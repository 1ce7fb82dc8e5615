"""Between what values a figure will probably lie: how far published runs were from their own estimates.

``residuals.toml`` has the published rows in cells: one table, one device, one kind of run, with the measured over the
predicted value at five places of its distribution. Every cell counts for a new run, not half as much for each property
in which it differs, so that what was never measured has the spread of everything else. ``benchmarks/residuals.py`` writes the file and
says which share of the rows of a table that was left out lies inside.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from generator.cost import constants as c
from generator.cost.execution import BYTES, Execution
from hwdetect import catalog
from hwdetect.types import Device

QUANTITIES = ("step_seconds", "allocator_peak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What makes runs alike: the properties by which rows are near or far. ``bits``: of the products' inputs."""

    device: str
    family: str
    mode: str
    form: str
    bits: int
    spread: str
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Factors on an estimate: 80 % of runs like it are expected between them. ``rows`` were of this very kind."""

    low: float
    high: float
    rows: int


def name_kind(device: Device, run: Execution) -> Kind:
    base = "" if run.quant == "none" else f"+{run.quant}"
    return Kind(
        device=device.id,
        family=device.architecture or device.vendor,
        mode=run.mode,
        form=(run.train if run.mode == "train" else run.engine or "infer") + base,
        bits=round(8 * BYTES[run.product_dtype]),
        spread="one" if run.devices == 1 else "node" if run.nodes == 1 else "nodes",
        compiled=run.compile is not None,
    )


@cache
def find_interval(quantity: str, kind: Kind) -> Interval | None:
    """``None`` where no row of this mode was measured."""
    return weigh_cells(kind, load_cells()[quantity])


def widen_unmeasured(interval: Interval | None, device: Device, mode: str) -> Interval | None:
    """Farther apart for an accelerator of whose generation, or of whose maker, no row of this mode was measured."""
    if interval is None or was_generation_measured(device, mode):
        return interval
    factor = c.UNMEASURED_GENERATION if was_maker_measured(device, mode) else c.UNMEASURED_MAKER
    return replace(interval, low=interval.low / factor, high=interval.high * factor)


def was_generation_measured(device: Device, mode: str) -> bool:
    """Whether step times of this mode were measured on a device that is built as this one. Of processors none says so: their rates are
    computed from what each can do."""
    return device.kind == "cpu" or name_generation(device) in list_measured_generations(mode)


def was_maker_measured(device: Device, mode: str) -> bool:
    """Whether step times of this mode were measured on a device of its maker."""
    return any(vendor == device.vendor for vendor, _, _ in list_measured_generations(mode))


def name_generation(device: Device) -> tuple[str, str | None, bool]:
    """What devices have in common that differ in size and clock alone. NVIDIA's architectures have several: an Orin (8.7) is no A100
    (8.0); and a memory that the host shares is another."""
    return device.vendor, device.compute_capability or device.architecture, device.unified_memory


@cache
def list_measured_generations(mode: str) -> frozenset[tuple[str, str | None, bool]]:
    return frozenset(name_generation(catalog.load(name)) for name in list_measured_devices(mode))


@cache
def list_measured_devices(mode: str) -> tuple[str, ...]:
    """Ids of those that step times of this mode were measured on, and that the catalogue has."""
    known = frozenset(catalog.list_ids())
    kinds = (kind for kind, _, _ in load_cells()["step_seconds"] if kind.mode == mode)
    return tuple(dict.fromkeys(kind.device for kind in kinds if kind.device in known))


def weigh_cells(kind: Kind, cells: tuple[tuple[Kind, int, tuple[float, ...]], ...]) -> Interval | None:
    """``cells``: their kind, how many rows, and their ratios."""
    weighed = [
        (ratio, c.RESIDUAL_NEARNESS ** count_differences(kind, other))
        for other, _, ratios in cells
        for ratio in ratios
        if other.mode == kind.mode
    ]
    if not weighed:
        return None
    low, high = (find_quantile(weighed, share) for share in (c.INTERVAL_SHARES["low"], c.INTERVAL_SHARES["high"]))
    return Interval(low=low, high=high, rows=sum(rows for other, rows, _ in cells if other == kind))


def count_differences(kind: Kind, other: Kind) -> int:
    """Another device of the same family is one, of another family two."""
    names = ("device", "family", "form", "bits", "spread", "compiled")
    return sum(getattr(kind, name) != getattr(other, name) for name in names)


def find_quantile(weighed: list[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` of the weight lies, of pairs of value and weight."""
    total, below = share * sum(weight for _, weight in weighed), 0.0
    for value, weight in sorted(weighed):
        below += weight
        if below >= total:
            return value
    return max(value for value, _ in weighed)


@cache
def load_cells() -> dict[str, tuple[tuple[Kind, int, tuple[float, ...]], ...]]:
    """The cells of each quantity, from the package's own file."""
    text = resources.files("generator.cost").joinpath("residuals.toml").read_text(encoding="utf-8")
    cells = tomllib.loads(text)
    return {quantity: tuple(read_cell(cell) for cell in cells.get(quantity, ())) for quantity in QUANTITIES}


def read_cell(cell: dict) -> tuple[Kind, int, tuple[float, ...]]:
    given = dict(cell)
    ratios, rows, _ = tuple(given.pop("ratios")), given.pop("rows"), given.pop("table")
    return Kind(**given), rows, ratios
