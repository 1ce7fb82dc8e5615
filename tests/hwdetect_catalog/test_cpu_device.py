"""A CPU's peak rates from its instruction sets, and measurements in their place."""

import pytest

from hwdetect.catalog import describe_cpu
from hwdetect.catalog.cpu import NARROW, compute_peak_flops
from hwdetect.spec import parse_spec
from hwdetect.types import Cache, Cpu, Measurement

GIB = 2**30


def device(text: str, measured=()):
    hardware = parse_spec(text)
    return describe_cpu(hardware.cpu, measured, hardware.memory.total_bytes)


def test_it_is_a_cpu_and_says_that_it_is_assumed():
    estimate = device("cpu:16")
    assert (estimate.id, estimate.kind, estimate.basis, estimate.compute_units) == ("cpu", "cpu", "assumed", 16)
    assert estimate.memory_bytes == 64 * GIB and estimate.unified_memory
    assert estimate.sources


def test_wider_vectors_are_faster():
    rates = [device(text).flops("fp32") for text in ("cpu:8+arm", "cpu:8+avx2", "cpu:8")]
    assert rates == sorted(rates) and len(set(rates)) == 3
    assert device("cpu:16").flops("fp32") == 2 * device("cpu:8").flops("fp32")


def test_bf16_without_instructions_is_far_slower_than_fp32():
    for text in ("cpu:16", "cpu:16+avx2", "cpu:16+vnni", "cpu:16+arm"):
        assert device(text).flops("bf16") < 0.4 * device(text).flops("fp32")


def test_bf16_is_emulated_with_avx512_and_multiplied_by_plain_loops_without():
    measured = (Measurement(what="matmul", where="cpu", value=1e11, dtype="fp32", size=2048, unit="flop/s"),)
    for of in ((), measured):
        shares = [device(text, of).flops("bf16") / device(text, of).flops("fp32") for text in ("cpu:2", "cpu:2+avx2")]
        assert shares == pytest.approx([0.32, 0.07])


def test_bf16_with_instructions_is_faster_than_fp32():
    plain, amx, sve = (device(f"cpu:16+{kind}") for kind in ("bf16", "amx", "sve"))
    assert plain.flops("bf16") == 2 * plain.flops("fp32")
    assert 3.5 < amx.flops("bf16") / amx.flops("fp32") < 3.8  # 1.54e12 and 0.42e12 on two cores
    assert sve.flops("bf16") > sve.flops("fp32")


def test_what_is_reached_without_tiles_is_told_apart():
    """Engines without kernels for them are priced by that: their float32 had been taken for half of the tiles' bf16."""
    amx, plain = device("cpu:16+amx"), device("cpu:16+bf16")
    assert dict(amx.vector_flops)["bf16"] == amx.flops("bf16") / 4 == plain.flops("bf16")
    assert "bf16" not in dict(plain.vector_flops)


def test_registers_of_256_bits_are_half_of_intels_with_avx512():
    """AMD's float32 products are made in them anyway: MKL has no wider ones for it."""
    assert dict(device("cpu:16+amx").vector_flops)[NARROW] == device("cpu:16+amx").flops("fp32") / 2
    assert NARROW not in dict(device("cpu:16+bf16").vector_flops)
    assert NARROW not in dict(device("cpu:16+avx2").vector_flops)


def test_memory_is_assumed_by_microarchitecture():
    known, other = (Cpu(cores=4, budget=4, microarchitecture=name) for name in ("zen5", "icelake"))
    assert describe_cpu(known, (), None).memory_bytes_per_s == 180e9
    assert describe_cpu(other, (), None).memory_bytes_per_s == 60e9


def test_int8_needs_its_instructions():
    assert device("cpu:16").flops("int8") is None
    assert device("cpu:16+vnni").flops("int8") == 4 * device("cpu:16").flops("fp32")


@pytest.mark.parametrize(
    ("vendor", "architecture", "ratio"),
    [("AuthenticAMD", "x86_64_v4", 4), ("AuthenticAMD", "zen4", 2.25), ("GenuineIntel", "sapphirerapids", 2)],
)
def test_bf16_beside_the_fp32_that_mkl_reaches(vendor, architecture, ratio):
    features = ("avx2", "avx512f", "avx512_bf16")
    rates = compute_peak_flops(Cpu(vendor=vendor, isa_features=features, microarchitecture=architecture), 2)
    assert rates["bf16"] == ratio * rates["fp32"]


@pytest.mark.parametrize(
    ("architecture", "reached"),
    [("zen4", {"fp32": 197e9, "bf16": 441e9}), ("zen5", {"fp32": 207e9, "bf16": 864e9})],
)
def test_two_cores_of_amd_with_avx512_have_the_rates_that_pytorch_reaches_there(architecture, reached):
    """Beside the share of a data sheet's rate that products are priced with."""
    features = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")
    cpu = Cpu(vendor="AuthenticAMD", isa_features=features, microarchitecture=architecture)
    rates = compute_peak_flops(cpu, 2)
    share = 0.6 / 0.93  # of a data sheet's rate, and of a measured one (generator/cost/constants.py)
    assert all(0.9 < share * rates[dtype] / rate < 1.1 for dtype, rate in reached.items())


def test_threads_and_quota():
    smt = Cpu(cores=8, cpus_online=16, cpus_allowed=16, budget=16, isa_features=("avx2",))
    quota = Cpu(cores=8, cpus_online=16, cpus_allowed=16, budget=2, isa_features=("avx2",))
    assert describe_cpu(smt, (), GIB).compute_units == 8
    assert describe_cpu(quota, (), GIB).compute_units == 2


def test_an_unread_cpu_is_the_slowest_one():
    estimate = describe_cpu(Cpu(), (), None)
    assert estimate.compute_units == 1 and estimate.basis == "assumed"
    assert estimate.flops("fp32") < device("cpu:1+arm").flops("fp32")


def test_measurements_win():
    measured = (
        Measurement(what="matmul", where="cpu", value=111e9, unit="flop/s", dtype="fp32"),
        Measurement(what="matmul", where="cuda:0", value=9e14, unit="flop/s", dtype="bf16"),
        Measurement(what="host_memory_bandwidth", where="cpu", value=17e9, unit="byte/s"),
    )
    estimate = device("cpu:2", measured)
    assert estimate.flops("fp32") == 111e9 and estimate.memory_bytes_per_s == 17e9
    assert estimate.basis == "measured"
    assert estimate.flops("bf16") < 0.4 * 111e9
    assert device("cpu:2", measured[:1]).basis == "assumed"


def test_last_level_cache():
    caches = (
        Cache(level=1, kind="instruction", size_bytes=32768, count=4),
        Cache(level=2, kind="unified", size_bytes=2**20, count=4),
        Cache(level=3, kind="unified", size_bytes=32 * 2**20, count=2),
    )
    assert describe_cpu(Cpu(cores=4, caches=caches), (), GIB).l2_bytes == 64 * 2**20


@pytest.mark.parametrize("features", [("sme",), ("bf16",), ("i8mm", "sve")])
def test_any_set_of_features_gives_positive_rates(features):
    estimate = describe_cpu(Cpu(cores=4, isa_features=features), (), GIB)
    assert all(rate > 0 for _, rate in estimate.peak_flops)


@pytest.mark.parametrize(
    ("architecture", "hertz", "least", "most"),
    # two cores of Zen 3 in a virtual machine, which says no clock: products of 512 to 2,048 rows reach 71 to 93 GFLOP/s of each,
    # and GEMM_CEILING_CPU's 0.6 of what is assumed was 48
    [
        ("zen3", None, 110e9, 125e9),
        ("zen3", 3.5e9, 110e9, 115e9),
        ("zen2", None, 100e9, 110e9),
        ("zen", 3.2e9, 50e9, 52e9),
    ],
)
def test_a_clock_without_wide_registers_is_kept(architecture, hertz, least, most):
    cpu = Cpu(vendor="AuthenticAMD", isa_features=("avx2", "fma"), microarchitecture=architecture, max_hz=hertz)
    assert least < compute_peak_flops(cpu, 2)["fp32"] / 2 < most
