"""What the device reaches in practice: product rates by dtype, bandwidth, launch cost, links. Data sheet x named share."""

from __future__ import annotations

from dataclasses import dataclass

from generator.cost import constants as c
from generator.cost.estimate import weakest
from generator.cost.links import PCIE_LANE_BYTES_PER_S, ring_rates
from hwdetect.types import Device, Link

DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8": "fp8", "int8": "int8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one device. ``products`` is operations per second by dtype name, ceilings applied."""

    products: dict[str, float]
    vector: float
    bytes_per_s: float
    elementwise_bytes_per_s: float
    l2_bytes: float
    flash_forward: float
    flash_backward: float
    launch_seconds: float
    links: tuple[float, ...]
    """bytes per second, one direction, between devices of a node when n of them are used, by n; the last for any more"""
    network_bytes_per_s: float | None
    """one node's rate to the others; None: ``port_bytes_per_s`` a device"""
    port_bytes_per_s: float
    host_link_bytes_per_s: float
    on_cpu: bool
    basis: str
    source: str

    def flash(self, length: float) -> tuple[float, float]:
        """Operations per second of the attention kernels, forward and backward, for sequences of ``length`` tokens."""
        share = length / (length + c.CPU_ATTENTION_HALF_LENGTH) if self.on_cpu else 1.0
        return self.flash_forward * share, self.flash_backward * share

    def link(self, used: int) -> float:
        """Slowest connection that a ring over ``used`` devices of a node has to cross."""
        return self.links[min(used, len(self.links) - 1)]

    def product(self, dtype: str, tf32: bool) -> float:
        if dtype == "float32" and tf32 and "tf32" in self.products:
            return self.products["tf32"]
        return self.products[DTYPE[dtype]]


def rates_of(
    device: Device,
    cpu_budget: int | None,
    links: tuple[Link, ...],
    network_bytes_per_s: float | None,
    devices_per_node: int = 1,
) -> Rates:
    """A rate that the catalogue lacks is assumed, and the basis says so."""
    on_cpu = device.kind == "cpu"
    basis = [device.basis]
    peak = dict(device.peak_flops)
    vector = dict(device.vector_flops)
    if on_cpu and "fp32" not in peak and "fp32" not in vector:
        peak["fp32"] = c.CPU_CORE_FLOPS * (cpu_budget or 1)
        basis.append("assumed")
    fp32 = peak.get("fp32") or vector.get("fp32") or max(peak.values(), default=1e13) / 16
    bandwidth = device.memory_bytes_per_s
    if bandwidth is None:
        bandwidth = c.CPU_BYTES_PER_S if on_cpu else 5e11
        basis.append("assumed")
    measured = device.basis == "measured"  # a measured rate is what is reached, not a ceiling
    ceiling = 1.0 if measured else _by_architecture(device, c.GEMM_CEILING)
    if on_cpu:
        ceiling = c.GEMM_MEASURED_CPU if measured else c.GEMM_CEILING_CPU
    products = {"fp32": fp32 * (1.0 if measured else 0.9)}
    for name in ("tf32", "fp16", "bf16", "fp8", "int8"):
        if name in peak:
            products[name] = peak[name] * ceiling * (1.0 if measured else c.GEMM_REALISED)
    if on_cpu:
        products["fp32"] = fp32 * ceiling
        for name in set(products) - {"fp32"}:
            products[name] = peak[name] * ceiling
        products.setdefault("bf16", products["fp32"] / c.CPU_BF16_EMULATION)
        products.setdefault("fp16", products["fp32"] / c.CPU_BF16_EMULATION)
    else:
        products.setdefault("fp16", vector.get("fp16", fp32))
        products.setdefault("bf16", products["fp32"] / 2)
    products.setdefault("fp8", products["bf16"])
    products.setdefault("int8", products["fp16"])
    half = max(peak.get("bf16", 0.0), peak.get("fp16", 0.0)) or products["fp32"]
    cpu_attention = products["fp32"] * c.CPU_ATTENTION_REALISED
    port = _by_architecture(device, c.NETWORK_BYTES_PER_S)
    host = (device.pcie_width or 16) * PCIE_LANE_BYTES_PER_S.get(device.pcie_generation or 4, 1.969e9)
    return Rates(
        products=products,
        vector=fp32,
        bytes_per_s=bandwidth * (c.CPU_READ_REALISED if on_cpu else 1.0 if measured else c.BANDWIDTH_REALISED),
        elementwise_bytes_per_s=bandwidth
        * (c.CPU_ELEMENTWISE_REALISED if on_cpu else 1.0 if measured else c.BANDWIDTH_REALISED),
        l2_bytes=0.0 if on_cpu else float(device.l2_bytes or 0),
        flash_forward=cpu_attention if on_cpu else half * _by_architecture(device, c.FLASH_FORWARD),
        flash_backward=cpu_attention if on_cpu else half * _by_architecture(device, c.FLASH_BACKWARD),
        launch_seconds=c.CPU_OPERATOR_SECONDS if on_cpu else c.LAUNCH_SECONDS,
        links=ring_rates(device, links, devices_per_node),
        network_bytes_per_s=network_bytes_per_s,
        port_bytes_per_s=port,
        host_link_bytes_per_s=host,
        on_cpu=on_cpu,
        basis=weakest([b if b in ("measured", "published", "derived", "assumed") else "assumed" for b in basis]),
        source=f"{device.name}: data sheet rates and {c.GEMM_SOURCE}"
        if not measured
        else f"{device.name}: measured rates",
    )


def _by_architecture(device: Device, shares: dict[str, float]) -> float:
    name = (device.architecture or "").lower().replace(" ", "")
    return next((share for key, share in shares.items() if key in name), shares["default"])
