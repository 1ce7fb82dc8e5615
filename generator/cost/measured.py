"""What `perfgen detect --measure` timed on this machine, in the place of data-sheet rates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from generator.cost import constants as c
from generator.cost.device import Rates
from hwdetect.types import Measurement

SOURCE = "measured here (perfgen detect --measure)"


def apply_measurements(rates: Rates, measured: Sequence[Measurement], accelerators: Sequence[int]) -> Rates:
    """``rates`` with what was timed on ``accelerators``, the slowest of them; unchanged where nothing was.

    A timed product or copy is what the device reaches, so no ceiling is applied to it again; training keeps to its share of
    the best product (``GEMM_REALISED``). An all-reduce tells what the links give to collectives, at every number of devices.
    """
    own = [m for m in measured if find_accelerator(m) in accelerators]
    slowest = {(m.what, m.dtype): min(x.value for x in own if (x.what, x.dtype) == (m.what, m.dtype)) for m in own}
    if not slowest:
        return rates
    products = {d: rate * c.GEMM_REALISED for (what, d), rate in slowest.items() if what == "matmul" and d is not None}
    copy = slowest.get(("device_memory_bandwidth", None))
    host = slowest.get(("host_to_device_pinned", None))
    everything = products and copy
    return replace(
        rates,
        products=rates.products | products,
        bytes_per_s=copy or rates.bytes_per_s,
        elementwise_bytes_per_s=copy or rates.elementwise_bytes_per_s,
        host_link_bytes_per_s=host or rates.host_link_bytes_per_s,
        links=scale_links(rates, measured, len(accelerators)),
        basis="measured" if everything else rates.basis,
        source=SOURCE if everything else rates.source,
        bandwidth_source=SOURCE if copy else rates.bandwidth_source,
    )


def find_accelerator(measurement: Measurement) -> int | None:
    """The accelerator that was timed alone, or ``None``."""
    match = re.fullmatch(r"accelerator (\d+)", measurement.where)
    return int(match[1]) if match else None


def scale_links(rates: Rates, measured: Sequence[Measurement], count: int) -> tuple[float, ...]:
    """The links by number of devices, scaled by how a timed all-reduce over all of them compares with the data sheet."""
    timed = [m.value for m in measured if m.what.startswith("all_reduce")]
    if not timed or count < 2:
        return rates.links
    from statistics import median  # brings decimal: only those who measured pay

    scale = median(timed) / c.COLLECTIVE_REALISED / rates.link(count)
    return tuple(rate * scale for rate in rates.links)
