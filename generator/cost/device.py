"""What the device reaches in practice: product rates by dtype, bandwidth, launch cost, links. Data sheet x named share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.constants import Constant
from generator.cost.estimate import BASES, find_weakest_basis
from generator.cost.links import DIRECT, compute_ring_rates
from hwdetect.catalog.cpu import NARROW
from hwdetect.types import Device, Link

DTYPE = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8": "fp8",
    "float4": "fp4",
    "int8": "int8",
}
REDUCED = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")


class AttentionRates(NamedTuple):
    """Operations per second of a kernel with long sequences; ``half_length`` and ``backward_half_length`` are where it reaches half
    of them."""

    forward: float
    backward: float
    half_length: float
    backward_half_length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one device. ``products`` is operations per second by dtype name, ceilings applied."""

    products: dict[str, float]
    vector: float
    has_matrix_units: bool
    """that some engines' kernels use and PyTorch's do not: no part of ``products``"""
    has_tiles: bool
    """a CPU's, whose ``products`` of bf16 and int8 are theirs (AMX)"""
    narrow: float
    """float32 operations per second of a CPU's registers of 256 bits, as large products reach them; else 0"""
    bytes_per_s: float
    read_bytes_per_s: float
    """of products with few rows in an engine's replayed step, which read weights and write next to nothing"""
    elementwise_bytes_per_s: float
    l2_bytes: float
    l2_gain: float
    """speed of the L2 cache over memory"""
    attention: dict[str, AttentionRates]
    """by kernel: flash2 everywhere; flash3 and cudnn where they are written for the architecture"""
    launch_seconds: float
    links: tuple[float, ...]
    """bytes per second, one direction, between devices of a node when n of them are used, by n; the last for any more"""
    peers_read: bool
    """devices of a node read each other's memory over direct links"""
    rack: int
    """devices that such links join over the nodes of a rack; 0: a node's alone"""
    network_bytes_per_s: float | None
    """one node's rate to the others; None: ``port_bytes_per_s`` per device"""
    port_bytes_per_s: float
    host_link_bytes_per_s: float
    nvme_bytes_per_s: float
    on_cpu: bool
    basis: str
    source: str
    """of ``products``; the others say where their shares come from"""
    bandwidth_source: str
    attention_source: str
    launch_source: str

    def flash(self, length: float, kernel: str = "flash2", biased: bool = False) -> tuple[float, float]:
        """Operations per second of an attention kernel, forward and backward, for sequences of ``length`` tokens."""
        rates = self.attention.get(kernel) or self.attention["flash2"]
        whole = length * (c.BIASED_ATTENTION if biased else 1.0)
        return (
            rates.forward * whole / (length + rates.half_length),
            rates.backward * whole / (length + rates.backward_half_length),
        )

    def speed_up(self, tensor_bytes: float) -> float:
        """How much faster than from memory tensors of that size are read that were just written: from the L2 cache, as far as it
        holds them."""
        cached = min(1.0, self.l2_bytes / (c.L2_TENSORS * tensor_bytes))
        return 1.0 + cached * (self.l2_gain - 1.0)

    def link(self, used: int) -> float:
        """Slowest connection that a ring over ``used`` devices of a node has to cross."""
        return self.links[min(used, len(self.links) - 1)]

    def product(self, dtype: str, tf32: bool) -> float:
        if dtype == "float32" and tf32 and "tf32" in self.products:
            return self.products["tf32"]
        return self.products[DTYPE[dtype]]


def compute_rates(
    device: Device,
    cpu_budget: int | None,
    links: tuple[Link, ...],
    network_bytes_per_s: float | None,
    devices_per_node: int = 1,
    nvme_bytes_per_s: float | None = None,
) -> Rates:
    """A rate that the catalogue lacks is assumed, and the basis says so."""
    basis = [device.basis if device.basis in BASES else "assumed"]
    if device.memory_bytes_per_s is None or lacks_cpu_rate(device):
        basis.append("assumed")
    if device.kind != "cpu" and find_product_share(device).basis == c.ASSUMED:
        basis.append("assumed")
    of_kind = compute_cpu_rates(device, cpu_budget or 1) if device.kind == "cpu" else compute_accelerator_rates(device)
    return Rates(
        **of_kind,
        vector=find_fp32_rate(device, cpu_budget or 1),
        has_matrix_units=device.architecture in c.WITH_MATRIX_UNITS,
        has_tiles=has_tiles(device),
        links=compute_ring_rates(device, links, devices_per_node),
        peers_read=any(link.kind in DIRECT for link in links) if links else bool(device.link_bytes_per_s),
        rack=device.link_rack or 0,
        network_bytes_per_s=network_bytes_per_s,
        port_bytes_per_s=select_by_architecture(device, c.NETWORK_BYTES_PER_S),
        host_link_bytes_per_s=compute_host_link_rate(device),
        nvme_bytes_per_s=nvme_bytes_per_s or c.NVME_BYTES_PER_S,
        on_cpu=device.kind == "cpu",
        basis=find_weakest_basis(basis),
    )


def compute_accelerator_rates(device: Device) -> dict:
    """The fields of ``Rates`` in which accelerators differ from a CPU."""
    products = compute_accelerator_products(device)
    half = max(dict(device.peak_flops).get(name, 0.0) for name in ("bf16", "fp16")) or products["fp32"]
    measured = device.basis == "measured"  # a measured rate is what is reached, not a ceiling
    bandwidth = device.memory_bytes_per_s or c.UNKNOWN_BYTES_PER_S
    reached = bandwidth * (1.0 if measured else c.BANDWIDTH_REALISED)
    return {
        "products": products,
        "narrow": 0.0,
        "bytes_per_s": reached,
        "read_bytes_per_s": reached if measured else bandwidth * c.READ_REALISED,
        "elementwise_bytes_per_s": reached,
        "l2_bytes": float(device.l2_bytes or bandwidth * c.UNKNOWN_L2_SECONDS),
        "l2_gain": float(select_by_architecture(device, c.L2_GAIN)),
        "attention": compute_attention_rates(device, half),
        "launch_seconds": c.LAUNCH_SECONDS,
        "source": describe_product_source(device, find_product_share(device)),
        "bandwidth_source": c.BANDWIDTH_REALISED.source,
        "attention_source": c.FLASH_FORWARD["default"].source,
        "launch_source": c.LAUNCH_SECONDS.source,
    }


def find_product_share(device: Device) -> Constant:
    """Of its rate on paper, what 16-bit products reach."""
    peak = dict(device.peak_flops)
    half = peak.get("bf16") or peak.get("fp16")
    alike = half is not None and half == peak.get("fp32")
    return select_by_architecture(device, c.FP32_REALISED if alike else c.GEMM_CEILING)


def compute_attention_rates(device: Device, half: float) -> dict[str, AttentionRates]:
    """``half``: operations per second of its 16-bit products, on paper."""
    major = (device.compute_capability or "").partition(".")[0]
    # FlashAttention-2 multiplies with instructions of Ampere, which are slower than their own on those with asynchronous ones
    forward = half * c.FLASH_FORWARD.get(major, c.FLASH_FORWARD["default"])
    halves = (c.FLASH_HALF_LENGTH, c.FLASH_HALF_LENGTH)
    rates = {"flash2": AttentionRates(forward, forward * c.FLASH_BACKWARD_SHARE, *halves)}
    if major in c.FLASH3_FORWARD:
        own = half * c.FLASH3_FORWARD[major]
        halves = (c.FLASH3_HALF_LENGTH, c.FLASH3_HALF_LENGTH)
        rates["flash3"] = AttentionRates(own, own * c.FLASH3_BACKWARD_SHARE, *halves)
    if major in c.CUDNN_FORWARD:
        own = half * c.CUDNN_FORWARD[major]
        halves = (c.CUDNN_HALF_LENGTH, c.CUDNN_BACKWARD_HALF_LENGTH)
        rates["cudnn"] = AttentionRates(own, own * c.CUDNN_BACKWARD_SHARE, *halves)
    return rates


def compute_accelerator_products(device: Device) -> dict[str, float]:
    """Operations per second of matrix products by dtype."""
    peak, vector = dict(device.peak_flops), dict(device.vector_flops)
    fp32 = find_fp32_rate(device, 1)
    measured = device.basis == "measured"
    share = 1.0 if measured else select_by_architecture(device, c.GEMM_CEILING) * compute_power_share(device)
    realised = 1.0 if measured else c.GEMM_REALISED
    products = {"fp32": fp32 * (1.0 if measured else select_by_architecture(device, c.FP32_REALISED))}
    products |= {name: peak[name] * share * realised for name in REDUCED if name in peak}
    for half in ("bf16", "fp16"):
        if peak.get(half) == fp32:  # the same units for both, none of their own for fewer bits (Apple's GPUs)
            products[half] = products["fp32"]
    if "fp8" in products and not measured:
        products["fp8"] *= c.FP8_REALISED
    if "fp4" in products and not measured:
        products["fp4"] *= c.FP4_REALISED
    products.setdefault("fp16", vector.get("fp16", fp32))  # no matrix units: the vector units' rate
    products.setdefault("bf16", products["fp32"] / c.EMULATED_BF16)
    products.setdefault("fp8", products["bf16"])  # stored in 8 bits, multiplied in 16
    products.setdefault("fp4", products["bf16"])
    products.setdefault("int8", products["fp16"])
    return products


def compute_power_share(device: Device) -> float:
    """Of the rate of a board of its architecture that has power enough: power goes with clock times voltage squared, and voltage
    with the clock, so that a board with less of it per operation is slower by the cube root, and one with far more, such as a
    GeForce with its halved rate, is not held back at all. A100 PCIe: 0.93 of the SXM's share (stas00/ml-engineering), 0.91 here."""
    peak = dict(device.peak_flops)
    half = peak.get("bf16") or peak.get("fp16")
    enough = select_by_architecture(device, c.WATTS_PER_TFLOPS)
    if not half or not device.tdp_watts or not enough:
        return 1.0
    power = device.tdp_watts / (half / 1e12) / enough
    if power > c.AMPLE_POWER:
        return c.GEMM_UNTHROTTLED / select_by_architecture(device, c.GEMM_CEILING)
    return min(1.0, power ** (1 / 3))


def compute_cpu_rates(device: Device, cores: int) -> dict:
    """As ``compute_accelerator_rates``, for ``cores`` that one process may use."""
    peak = dict(device.peak_flops)
    ceiling = c.GEMM_MEASURED_CPU if device.basis == "measured" else c.GEMM_CEILING_CPU
    fp32 = find_fp32_rate(device, cores)
    products = {"fp32": fp32 * ceiling, **{name: peak[name] * ceiling for name in REDUCED if name in peak}}
    for half in ("bf16", "fp16"):  # without instructions for it oneDNN converts every element
        products.setdefault(half, products["fp32"] / c.CPU_BF16_EMULATION)
    products.setdefault("fp8", products["bf16"])
    products.setdefault("fp4", products["bf16"])
    products.setdefault("int8", products["fp16"])
    bandwidth = device.memory_bytes_per_s or c.CPU_BYTES_PER_S
    forward, half_length = c.CPU_ATTENTION_REALISED, c.CPU_ATTENTION_HALF_LENGTH
    backward, backward_half_length = forward, half_length
    if has_tiles(device):
        backward, backward_half_length = c.CPU_TILES_BACKWARD_REALISED, c.CPU_TILES_BACKWARD_HALF_LENGTH
    flash = AttentionRates(products["fp32"] * forward, products["fp32"] * backward, half_length, backward_half_length)
    return {
        "products": products,
        "narrow": products["fp32"] * find_narrow_share(device),
        "bytes_per_s": bandwidth * c.CPU_READ_REALISED,
        "read_bytes_per_s": bandwidth * c.CPU_READ_REALISED,
        "elementwise_bytes_per_s": bandwidth * c.CPU_ELEMENTWISE_REALISED,
        "l2_bytes": 0.0,  # its caches are in the measured bandwidth
        "l2_gain": 1.0,
        "attention": {"flash2": flash},
        "launch_seconds": c.CPU_OPERATOR_SECONDS,
        "source": describe_product_source(device, c.CPU_CORE_FLOPS if lacks_cpu_rate(device) else ceiling),
        "bandwidth_source": c.CPU_ELEMENTWISE_REALISED.source
        if device.memory_bytes_per_s
        else c.CPU_BYTES_PER_S.source,
        "attention_source": backward.source,
        "launch_source": c.CPU_OPERATOR_SECONDS.source,
    }


def has_tiles(device: Device) -> bool:
    """Whether a CPU's rates of 16 bits are those of AMX: without, they are less (``vector_flops``)."""
    return device.kind == "cpu" and "bf16" in dict(device.vector_flops)


def find_narrow_share(device: Device) -> float:
    """Of a CPU's rate of float32 products, that of registers of 256 bits."""
    narrow = dict(device.vector_flops).get(NARROW)
    return narrow / find_fp32_rate(device, 1) if narrow else 1.0


def lacks_cpu_rate(device: Device) -> bool:
    known = {name for name, _ in (*device.peak_flops, *device.vector_flops)}
    return device.kind == "cpu" and "fp32" not in known


def find_fp32_rate(device: Device, cores: int) -> float:
    """Float32 operations per second outside of matrix units."""
    if lacks_cpu_rate(device):
        return c.CPU_CORE_FLOPS * cores
    peak, vector = dict(device.peak_flops), dict(device.vector_flops)
    return peak.get("fp32") or vector.get("fp32") or max(peak.values(), default=c.UNKNOWN_FLOPS) * c.VECTOR_SHARE


def find_coherent_link_rate(device: Device) -> float | None:
    """Bytes per second and direction of NVLink-C2C, where the device's file has more than any PCIe link gives."""
    rate = device.host_bytes_per_s
    return rate if rate and rate > 16 * max(c.PCIE_LANE_BYTES_PER_S.values()) else None


def compute_host_link_rate(device: Device) -> float:
    """NVLink-C2C, or PCIe: 4.0 x16 where the board does not say."""
    coherent = find_coherent_link_rate(device)
    if coherent:
        return coherent
    lane = c.PCIE_LANE_BYTES_PER_S.get(device.pcie_generation or 4, c.PCIE_LANE_BYTES_PER_S[4])
    return (device.pcie_width or 16) * lane


def select_by_architecture(device: Device, shares: Mapping[str, Constant]) -> Constant:
    name = (device.architecture or "").lower().replace(" ", "")
    return next((share for key, share in shares.items() if key in name), shares["default"])


def describe_product_source(device: Device, share: Constant) -> str:
    if device.basis == "measured":
        return f"{device.name}: measured rates"
    return f"{device.name}: data sheet rates and {share.source}"


def find_context(vendor: str) -> Constant:
    """What a process holds of a board of that maker beside its tensors, in GiB."""
    return c.CONTEXT_GIB.get(vendor, c.CONTEXT_GIB["default"])


def find_communicator(vendor: str) -> Constant:
    """What the collectives of that maker hold of each board for one group of processes, in GiB."""
    return c.COMMUNICATOR_GIB.get(vendor, c.COMMUNICATOR_GIB["default"])
