"""A CPU as a ``Device``: peak rates from its instruction sets, cores and clock, or from measurements where there are.

Operations per cycle and core come from the makers' optimization manuals and from WikiChip's port diagrams:
- AVX2 + FMA: two 256-bit ports × 8 fp32 × 2 = 32 (Haswell, Zen 2 and later);
- AVX-512: two 512-bit ports × 16 × 2 = 64 (Xeon Scalable, Zen 5); of Zen 4, which runs it on 256-bit units at a higher clock, PyTorch
  reaches as much of that (98 GFLOP/s of a core; 103 of Zen 5's, where MKL takes its AVX2 code);
- AVX512_BF16 (VDPBF16PS) doubles the AVX-512 rate, AVX512_VNNI quadruples it for int8, AVX512_FP16 doubles it for fp16;
- AVX512_BF16 on AMD, as PyTorch reaches both: four times fp32 on Zen 5 (405 against 92 GFLOP/s of a core, 864 against 207 of two), and 2.25
  times on Zen 4 (441 against 197 of two; torch 2.13, this project): oneDNN multiplies bf16;
- AMX: a tile product of 16×16×32 bf16 in 16 cycles = 1024 bf16, 2048 int8
  (Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter "Intel AMX");
- Arm NEON: two 128-bit pipes = 16 (Neoverse N1), four = 32 (Neoverse V2, Apple's big cores); SVE: 32
  (Neoverse V1 2×256, V2 4×128); BF16 (BFMMLA) quadruples, I8MM gives eight times for int8
  (Arm Neoverse V1 and V2 Software Optimization Guides).
Clock: the sustained all-core clock under vector load, taken as 0.75 of the maximum (2.5 GHz where that is unknown), and on AMD's processors
without AVX-512, which have no lower clock for wide registers, as the maximum: one core of Zen 3 reaches 77 GFLOP/s in PyTorch's products.
Without instructions for it oneDNN emulates bf16 where there is AVX-512: 0.32 of fp32, measured on a 2-core AVX-512 Xeon
(17M-parameter Llama, bf16 autocast 0.32×, pure bf16 0.33× the fp32 step). Elsewhere, and for fp16, PyTorch's plain loops multiply:
a layer's three products of 256 rows took 14 times float32's time in bf16 and 19 times in fp16 (torch 2.13, one core of Zen 3: 7.9,
2.2 and 19.6 GFLOP/s and 9.7, 2.0 and 3.8 of 72, 74 and 56), SFT of SmolLM2 by the stock Trainer 12 times (benchmarks/results/stock-cpu.json).
"""

from __future__ import annotations

from hwdetect.types import Cpu, Device, Measurement

ASSUMED_HZ = 2.5e9
SUSTAINED_SHARE_OF_MAX_HZ = 0.75
MAX_HZ = {"zen2": 3.35e9, "zen3": 3.7e9}
"""where a virtual machine does not say it: the boost clocks of EPYC 7702 and 7543 by AMD's specifications, whose families have 3.2 to 4.0.
At 3.7 GEMM_CEILING_CPU's share is 71 GFLOP/s a core of Zen 3, where GEMM_MEASURED_CPU's of the 77 that were measured is 72"""
EMULATED_SHARE_OF_FP32 = 0.32
PLAIN_SHARE_OF_FP32 = {"bf16": 0.07, "fp16": 0.05}
ASSUMED_BYTES_PER_S = (15e9, 150e9)
"""Of copies, of one busy core and of a package: eight channels of DDR4-3200 give 205 GB/s of which about three quarters are reached
(STREAM results of Ice Lake servers); a core alone copies 8 to 14 GB/s there."""
BYTES_PER_S = {
    "zen3": (11e9, 150e9),
    "zen4": (20e9, 345e9),
    "zen5": (45e9, 430e9),
    "sapphirerapids": (16e9, 230e9),
}
"""The same by microarchitecture: of a core half of what two copied in a virtual machine (the machines of benchmarks/results/engines_cpu*.json:
22, 41, 92 and 32 GB/s), of a package three quarters of its channels (EPYC 7003: 8 of DDR4-3200, 9004: 12 of DDR5-4800, 9005: 12 of DDR5-6000;
Xeon Scalable of the fourth generation: 8 of DDR5-4800)."""
TILE_PER_CYCLE, FP32_BESIDE_TILES = 512, 2.2
"""Of 1,024 operations of a tile's product (AMX_SOURCE) those that PyTorch reaches, and its float32 over what is assumed of others: 770 and
212 GFLOP/s a core (products of 1,024 rows on two cores of a Xeon with AMX), beside the share that products are priced with"""
TILES_OVER_LANES = 4
"""of those to products of bf16 in registers of 512 bits, 128 a cycle"""
NARROW = "fp32 of 256 bits"
COMMON_SHARE = 0.75
"""ours: products of 1,024 and 4,096 rows came out within a tenth on quiet machines (benchmarks/measure.py)"""
PER_CYCLE_SOURCE = "https://en.wikichip.org/wiki/flops"
"""FLOPs per cycle and core by microarchitecture, of Intel, AMD and Arm"""
AMX_SOURCE = "https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html"
ARM_SOURCE = "https://developer.arm.com/documentation/109897/latest/"
BANDWIDTH_SOURCE = "https://www.cs.virginia.edu/stream/"


def describe_cpu(cpu: Cpu, measured: tuple[Measurement, ...], memory_bytes: int | None) -> Device:
    """This CPU as the planner's device; ``measured`` rates (what ``matmul``, ``host_memory_bandwidth``) win.

    ``basis`` is "measured" when the matmul rates and the bandwidth both were, else "assumed".
    """
    cores = count_usable_cores(cpu)
    rates = compute_peak_flops(cpu, cores)
    taken = select_measured_rates(measured)
    rates.update(taken)
    bandwidth = select_measured_bandwidth(measured)
    if taken and "fp32" in taken and "bf16" not in taken and not has_bf16(cpu):
        rates["bf16"] = get_share_without_bf16(cpu) * taken["fp32"]
    return Device(
        id="cpu",
        vendor=cpu.vendor or "unknown",
        name=cpu.model_name or cpu.architecture or "CPU",
        kind="cpu",
        architecture=cpu.microarchitecture or cpu.architecture,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=bandwidth or assume_bandwidth(cpu, cores),
        unified_memory=True,
        l2_bytes=sum_last_level_cache(cpu),
        compute_units=cores,
        peak_flops=tuple(rates.items()),
        vector_flops=tuple(compute_lane_flops(cpu, rates).items()),
        sources=cite_sources(cpu),
        basis="measured" if taken and bandwidth else "assumed",
    )


def cite_sources(cpu: Cpu) -> tuple[tuple[str, str], ...]:
    """Where the rates of this CPU come from: a maker's manual only for a CPU that has what the manual is about."""
    features = set(cpu.isa_features or ())
    sources = [("peak_flops.*", PER_CYCLE_SOURCE)]
    if features & {"amx_bf16", "amx_int8"}:
        sources.append(("peak_flops.amx", AMX_SOURCE))
    if features & {"neon", "asimd", "sve"}:
        sources.append(("peak_flops.arm", ARM_SOURCE))
    return (*sources, ("memory.bytes_per_s", BANDWIDTH_SOURCE))


def count_usable_cores(cpu: Cpu) -> int:
    """Physical cores that this process can keep busy: no more than its budget, and no second thread of a core."""
    limits = [n for n in (cpu.budget or cpu.cpus_allowed, cpu.cores) if n]
    return max(1, min(limits, default=1))


def get_fp32_per_cycle(features: frozenset[str], architecture: str | None) -> int:
    """fp32 operations per cycle and core; ``architecture`` is archspec's label, where known."""
    if "avx512f" in features:
        return 64
    if "avx2" in features:
        return 16 if architecture == "zen" else 32  # the first Zen makes two 128-bit halves of each
    if "avx" in features:
        return 16
    if "sve" in features or (architecture or "").startswith(("m1", "m2", "m3", "m4", "neoverse_v")):
        return 32
    # 8: one 128-bit multiply-add per cycle; 16: two.
    return 16 if features & {"neon", "asimd"} else 8


def assume_hertz(cpu: Cpu) -> float:
    """The clock that all cores keep under vector load."""
    most = cpu.max_hz or MAX_HZ.get(cpu.microarchitecture or "")
    if most and cpu.vendor == "AuthenticAMD" and "avx512f" not in (cpu.isa_features or ()):
        return most
    return most * SUSTAINED_SHARE_OF_MAX_HZ if most else ASSUMED_HZ


def compute_peak_flops(cpu: Cpu, cores: int) -> dict[str, float]:
    features = frozenset(cpu.isa_features or ())
    cycles = cores * assume_hertz(cpu)
    fp32 = get_fp32_per_cycle(features, cpu.microarchitecture) * cycles
    if "amx_bf16" in features:
        fp32 *= FP32_BESIDE_TILES
    rates = {
        "fp64": fp32 / 2,  # half as many lanes in the same register
        "fp32": fp32,
        "fp16": fp32 * _get_fp16_ratio(features),
        # A tile product has no fp32 counterpart that it could be a multiple of.
        "bf16": TILE_PER_CYCLE * cycles if "amx_bf16" in features else fp32 * _get_bf16_ratio(features, cpu),
    }
    if "amx_int8" in features:
        rates["int8"] = 2 * TILE_PER_CYCLE * cycles  # half the bytes of bf16: twice the operations in a tile
    elif features & {"avx512_vnni", "avx_vnni", "i8mm"}:
        # I8MM multiplies 2×8 by 8×2 in a register, VNNI adds four products to each lane.
        rates["int8"] = fp32 * (8 if "i8mm" in features else 4)
    return rates


def compute_lane_flops(cpu: Cpu, rates: dict[str, float]) -> dict[str, float]:
    """Of ``rates``, what is reached without tiles (AMX), which multiply four times what AVX512_BF16's registers do, and in registers of
    256 bits, which is what PyTorch's float32 products (MKL) are made in on AMD's processors, however wide those are."""
    features, lanes = cpu.isa_features or (), {"fp32": rates["fp32"]}
    if "avx512f" in features and (cpu.vendor == "GenuineIntel" or "amx_bf16" in features):
        lanes[NARROW] = rates["fp32"] / 2
    return lanes | {"bf16": rates["bf16"] / TILES_OVER_LANES} if "amx_bf16" in features else lanes


def has_bf16(cpu: Cpu) -> bool:
    """Whether the CPU multiplies bf16 natively (mkldnn's own flag is also true on plain AVX-512, where it is slow)."""
    return bool({"amx_bf16", "avx512_bf16", "bf16"} & set(cpu.isa_features or ()))


def get_share_without_bf16(cpu: Cpu) -> float:
    """Of fp32's rate, where no instruction multiplies bf16."""
    return EMULATED_SHARE_OF_FP32 if "avx512f" in (cpu.isa_features or ()) else PLAIN_SHARE_OF_FP32["bf16"]


def _get_bf16_ratio(features: frozenset[str], cpu: Cpu) -> float:
    if "avx512_bf16" in features:
        of_amd = 2.25 if cpu.microarchitecture == "zen4" else 4.0
        return of_amd if cpu.vendor == "AuthenticAMD" else 2.0
    return 4.0 if "bf16" in features else get_share_without_bf16(cpu)


def _get_fp16_ratio(features: frozenset[str]) -> float:
    return 2.0 if features & {"avx512_fp16", "fphp", "asimdhp"} else PLAIN_SHARE_OF_FP32["fp16"]


def select_measured_rates(measured: tuple[Measurement, ...]) -> dict[str, float]:
    """Matmul rates per dtype taken on the CPU, in operations per second: of several sizes the fastest, unless another reaches less
    than ``COMMON_SHARE`` of it (its caches then made the fastest): the slowest."""
    rates: dict[str, list[float]] = {}
    for m in measured:
        if m.what == "matmul" and m.dtype and m.where.startswith("cpu"):
            rates.setdefault(m.dtype, []).append(m.value)
    return {
        dtype: max(values) if min(values) > COMMON_SHARE * max(values) else min(values)
        for dtype, values in rates.items()
    }


def select_measured_bandwidth(measured: tuple[Measurement, ...]) -> float | None:
    return max((m.value for m in measured if m.what == "host_memory_bandwidth"), default=None)


def assume_bandwidth(cpu: Cpu, cores: int) -> float:
    of_core, of_package = BYTES_PER_S.get(cpu.microarchitecture or "", ASSUMED_BYTES_PER_S)
    return min(cores * of_core, (cpu.packages or 1) * of_package)


def sum_last_level_cache(cpu: Cpu) -> int | None:
    """Bytes of all caches of the highest level together."""
    known = [
        (c.level, c.size_bytes * (c.count or 1)) for c in cpu.caches or () if c.size_bytes and c.kind != "instruction"
    ]
    top = max((level for level, _ in known), default=None)
    return sum(size for level, size in known if level == top) or None
