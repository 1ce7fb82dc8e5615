"""What the device reaches in practice: product rates by dtype, bandwidth, launch cost, links. Data sheet x named share."""

from __future__ import annotations

from dataclasses import dataclass

from generator.cost import constants as c
from generator.cost.estimate import weakest
from hwdetect.types import Device, Link

DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8": "fp8", "int8": "int8"}
PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""one direction, after line coding (PCI-SIG)"""


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
    link_bytes_per_s: float
    network_bytes_per_s: float
    host_link_bytes_per_s: float
    on_cpu: bool
    basis: str
    source: str

    def product(self, dtype: str, tf32: bool) -> float:
        if dtype == "float32" and tf32 and "tf32" in self.products:
            return self.products["tf32"]
        return self.products[DTYPE[dtype]]


def rates_of(
    device: Device,
    cpu_budget: int | None,
    links: tuple[Link, ...],
    network_bytes_per_s: float | None,
    devices: int = 1,
    nodes: int = 1,
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
    link = _link(device, links) or 12e9
    half = max(peak.get("bf16", 0.0), peak.get("fp16", 0.0)) or products["fp32"]
    cpu_attention = products["fp32"] * c.CPU_ATTENTION_REALISED
    port = _by_architecture(device, c.NETWORK_BYTES_PER_S)
    if nodes > 1:
        link = min(link, network_bytes_per_s or port * max(1, devices // nodes))
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
        link_bytes_per_s=link,
        network_bytes_per_s=network_bytes_per_s or port,
        host_link_bytes_per_s=host,
        on_cpu=on_cpu,
        basis=weakest([b if b in ("measured", "published", "derived", "assumed") else "assumed" for b in basis]),
        source=f"{device.name}: data sheet rates and {c.GEMM_SOURCE}"
        if not measured
        else f"{device.name}: measured rates",
    )


def _source(device: Device, on_cpu: bool, measured: bool) -> str:
    if measured:
        return f"{device.name}: measured rates"
    return f"{device.name}: {'rates by instruction set; ' + c.CPU_STEP_SOURCE if on_cpu else c.GEMM_SOURCE}"


def _by_architecture(device: Device, shares: dict[str, float]) -> float:
    name = (device.architecture or "").lower().replace(" ", "")
    return next((share for key, share in shares.items() if key in name), shares["default"])


def _link(device: Device, links: tuple[Link, ...]) -> float | None:
    """The slowest connection between two devices, one direction, bytes per second."""
    known = [x.bandwidth_bytes_per_s for x in links if x.bandwidth_bytes_per_s]
    if known:
        return min(known)
    if device.link_bytes_per_s:
        return device.link_bytes_per_s
    if device.pcie_generation:
        rate = (device.pcie_width or 16) * PCIE_LANE_BYTES_PER_S.get(device.pcie_generation, 1.969e9)
        return rate * (0.8 if device.p2p else 0.4)  # without peer access every byte passes the host twice
    return None
