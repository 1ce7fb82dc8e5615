"""The catalogue itself: every number has a source, and none contradicts physics or its neighbours."""

import csv
import re
import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from hwdetect import catalog
from hwdetect.catalog.matching import fits_memory
from hwdetect.pci_vendors import PCI_VENDORS
from hwdetect.types import Device

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "../shared"
DEVICES = catalog.list_devices()
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
# Widest to narrowest: a matrix unit is never slower on the narrower of two floating formats.
NARROWER = ("tf32", "bf16", "fp8", "fp4")
WANTED = """
p100-sxm-16gb v100-sxm-16gb v100-sxm-32gb v100-pcie-16gb t4 a10 a10g a16 a2 a30 a40 a100-sxm-40gb a100-sxm-80gb
a100-pcie-40gb a100-pcie-80gb l4 l40 l40s h100-sxm-80gb h100-pcie-80gb h100-nvl-94gb h200-sxm-141gb h200-nvl h20
h800-sxm-80gb a800-sxm-80gb gh200-96gb b100 b200-sxm-180gb b300-sxm-270gb gb200 gb300 rtx-pro-6000-blackwell
gtx-1060-6gb gtx-1070 gtx-1080 gtx-1080-ti gtx-1650 gtx-1660-ti rtx-2060 rtx-2070 rtx-2080 rtx-2080-ti titan-rtx titan-v
rtx-3050 rtx-3060 rtx-3070 rtx-3080 rtx-3090 rtx-3090-ti rtx-4060 rtx-4070 rtx-4080 rtx-4090 rtx-5060 rtx-5070 rtx-5080
rtx-5090 quadro-rtx-4000 quadro-rtx-5000 quadro-rtx-6000 rtx-a4000 rtx-a6000 rtx-2000-ada rtx-6000-ada jetson-orin gb10
mi100 mi210 mi250 mi250x mi300a mi300x mi308x mi325x mi350x mi355x radeon-vii rx-6900-xt rx-7900-xtx rx-7900-xt
rx-9070-xt w7900 max-1100 max-1550 arc-a770 arc-a750 arc-b580 b60 m1 m1-pro m1-max m1-ultra m2 m2-ultra m3-max m4-max
tpu-v3 tpu-v4 tpu-v5e tpu-v5p tpu-v6e gaudi2 gaudi3 h200 h100 a100-80gb
"""


def test_the_readme_has_every_vendor_and_every_key():
    """But those of a table of rates or of sources, which are dtypes and addresses."""
    text = (ROOT / "hwdetect/devices/README.md").read_text(encoding="utf-8")
    example = tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    files = [tomllib.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "hwdetect/devices").glob("*.toml")]
    vendors = re.search(r"^vendor = .*?# (.*)$", text, re.MULTILINE)[1].split(", ")
    assert sorted(vendors) == sorted({file["vendor"] for file in files})
    for file in files:
        assert file.keys() <= example.keys() | {"source"}, file["name"]
        for table in (key for key, value in file.items() if isinstance(value, dict) and not key.endswith("_flops")):
            assert file[table].keys() - {"source", "sources"} <= example[table].keys(), (file["name"], table)


def by_id(device: Device) -> str:
    return device.id


def test_there_are_enough():
    assert len(catalog.list_ids()) >= 80
    assert len(DEVICES) == len(catalog.list_ids())


@pytest.mark.parametrize("name", WANTED.split())
def test_wanted_device_exists(name):
    assert catalog.load(name).memory_bytes


@pytest.mark.parametrize("device", DEVICES, ids=by_id)
def test_no_number_without_a_source(device):
    for field, url in device.sources:
        measured = url.startswith("benchmarks/results/") and (ROOT / url).is_file()
        assert measured or re.fullmatch(r"https://[^\s\"]+\.[^\s\"]+", url), f"{device.id}: {field} has no source"
    sourced = {field for field, _ in device.sources}
    for table, rates in (("peak_flops", device.peak_flops), ("vector_flops", device.vector_flops)):
        assert {f"{table}.{dtype}" for dtype, _ in rates} <= sourced
    numbers = {
        "memory.bytes": device.memory_bytes,
        "memory.bytes_per_s": device.memory_bytes_per_s,
        "memory.l2_bytes": device.l2_bytes,
        "compute.units": device.compute_units,
        "compute.capability": device.compute_capability,
        "link.bytes_per_s": device.link_bytes_per_s,
        "link.p2p": device.p2p,
        "pcie.generation": device.pcie_generation,
        "pcie.width": device.pcie_width,
        "power.tdp_watts": device.tdp_watts,
        "pci.ids": device.pci_ids or None,
    }
    assert {field for field, value in numbers.items() if value is not None} <= sourced


@pytest.mark.parametrize("device_id", catalog.list_ids())
def test_file_is_written_as_documented(device_id):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", device_id)
    text = catalog.read_texts()[device_id]
    allowed = {"pci", "compute", "memory", "peak_flops", "vector_flops", "link", "pcie", "host", "power", "arithmetic"}
    tables = {name.split(".")[0] for name in re.findall(r"^\[([a-z_.]+)\]", text, re.M)}
    assert tables <= allowed
    rates = re.findall(r"^\[(?:peak|vector)_flops\]\n((?:\w+ = .*\n)+)", text, re.M)
    keys = {line.split(" = ")[0] for block in rates for line in block.splitlines()}
    assert keys <= {*DTYPES, "source"}


@pytest.mark.parametrize("device", DEVICES, ids=by_id)
def test_rates_agree_with_physics(device):
    peak, vector = dict(device.peak_flops), dict(device.vector_flops)
    for dtype, rate in vector.items():
        if dtype in peak:
            assert peak[dtype] >= rate * 0.999, f"{dtype}: matrix units slower than vector units"
    for wide, narrow in pairwise(NARROWER):
        if wide in peak and narrow in peak:
            assert peak[narrow] >= peak[wide] * 0.999, f"{narrow} slower than {wide}"
    if "fp16" in peak and "bf16" in peak and device.id != "mi100":  # CDNA 1 has bf16 at half rate
        assert peak["fp16"] == peak["bf16"]
    if device.tdp_watts and "bf16" in peak:
        # Between Volta's 0.25 and Blackwell's 2.3 TFLOP/s a watt.
        assert 0.05e12 < peak["bf16"] / device.tdp_watts < 4e12


@pytest.mark.parametrize("device", DEVICES, ids=by_id)
def test_memory_agrees_with_physics(device):
    assert 2 * 2**30 <= device.memory_bytes <= 600 * 2**30
    assert 3e10 < device.memory_bytes_per_s < 2.5e13  # HBM4
    # No memory of today is read whole in less than 5 ms (HBM), nor takes over 0.8 s (the largest unified ones).
    assert 0.005 < device.memory_bytes / device.memory_bytes_per_s < 0.8
    best = max((rate for dtype, rate in device.peak_flops if dtype in ("bf16", "fp16", "fp32")), default=None)
    if best is not None:
        # The ridge point: matrix operations per byte of memory traffic.
        # Inferentia has four NeuronCores on DDR4.
        assert 5 < best / device.memory_bytes_per_s < 1300
    if device.l2_bytes:
        assert device.l2_bytes < device.memory_bytes / 50


@pytest.mark.parametrize("device", DEVICES, ids=by_id)
def test_links_agree_with_physics(device):
    if device.link_bytes_per_s:
        assert device.link_kind
        assert 2e10 <= device.link_bytes_per_s <= 2e12  # NVLink 6
        assert device.link_bytes_per_s < device.memory_bytes_per_s
        if device.link_count:
            assert 1e10 <= device.link_bytes_per_s / device.link_count <= 2e11
    if device.pcie_width:
        assert device.pcie_generation in (3, 4, 5, 6)
        assert device.pcie_width in (4, 8, 16)
    if device.host_bytes_per_s:
        assert 3e9 < device.host_bytes_per_s < device.memory_bytes_per_s


def test_pci_ids_are_unique_for_a_memory_size_or_told_apart_by_name():
    holders = defaultdict(list)
    for device in DEVICES:
        for pci_id in device.pci_ids:
            assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", pci_id)
            assert pci_id[:4] in PCI_VENDORS.values()
            holders[pci_id].append(device)
    for pci_id, sharing in holders.items():
        for device in sharing:
            rivals = [d for d in sharing if d is not device and fits_memory(d.memory_bytes, device.memory_bytes)]
            if rivals:
                matched = catalog.match(
                    device.vendor, device.name, pci_id, device.compute_capability, device.memory_bytes
                )
                assert matched == device.id, f"{pci_id} of {device.id} and {[d.id for d in rivals]}"


def test_boards_that_not_everyone_can_get_say_so():
    markets = {device.id: device.market for device in DEVICES if device.market}
    assert set(markets.values()) == {"china", "aws", "custom", "announced"}
    assert markets["h800-sxm-80gb"] == "china" and markets["vr200"] == "announced" and "h100-sxm-80gb" not in markets


def test_aliases_are_unique():
    names = [name for device in DEVICES for name in (device.id, *device.aliases)]
    assert len(names) == len(set(names))


def test_the_way_to_the_host():
    assert catalog.load("gh200").host_bytes_per_s == 450e9
    assert catalog.load("h100").host_bytes_per_s == pytest.approx(63e9, rel=0.01)
    assert catalog.load("t4").host_bytes_per_s == pytest.approx(15.75e9, rel=0.01)


def test_geforce_rates_are_those_with_fp32_accumulation():
    rtx4090, rtx6000 = catalog.load("rtx-4090"), catalog.load("rtx-6000-ada")
    a_unit_geforce = rtx4090.flops("bf16") / rtx4090.compute_units
    a_unit_pro = rtx6000.flops("bf16") / rtx6000.compute_units
    assert a_unit_pro / a_unit_geforce == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("device_id", "dtype", "tflops"),
    [
        # Dense figures from the data sheets, independent of the files.
        ("v100-sxm-16gb", "fp16", 125),
        ("t4", "fp16", 65),
        ("a100-sxm-80gb", "bf16", 312),
        ("a100-sxm-80gb", "tf32", 156),
        ("h100-sxm-80gb", "bf16", 989),
        ("h100-sxm-80gb", "fp8", 1979),
        ("h200-sxm-141gb", "bf16", 989),
        ("b200-sxm-180gb", "bf16", 2250),
        ("gb200", "bf16", 2500),
        ("rtx-3090", "bf16", 71),
        ("rtx-4090", "bf16", 165),
        ("rtx-5090", "bf16", 209.5),
        ("rtx-a6000", "bf16", 154.8),
        ("rtx-6000-ada", "fp8", 728.5),
        ("rtx-pro-6000-blackwell", "bf16", 503.8),
        ("l4", "bf16", 121),
        ("l40s", "bf16", 362),
        ("a10g", "bf16", 70),
        ("mi250x", "bf16", 191.5),
        ("mi300x", "bf16", 1307),
        ("tpu-v5e", "bf16", 197),
    ],
)
def test_known_rates(device_id, dtype, tflops):
    assert catalog.load(device_id).flops(dtype) / 1e12 == pytest.approx(tflops, rel=0.005)


@pytest.mark.skipif(not (SHARED / "measured").is_dir(), reason="needs the shared folder beside the repository")
def test_every_device_of_the_measured_runs_is_known():
    unknown = set()
    for path in sorted((SHARED / "measured").rglob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row.get("device"):
                    unknown |= {row["device"]} if catalog.resolve(row["device"]) is None else set()
    assert unknown == set()


@pytest.mark.skipif(not (SHARED / "measured").is_dir(), reason="needs the shared folder beside the repository")
def test_no_measured_matmul_is_faster_than_the_catalogue_says():
    checked = 0
    with (SHARED / "measured/more/hw_mamf.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            device_id = catalog.match_text(row["gpu"].replace("-GCD", ""))
            rate = catalog.load(device_id).flops(row["dtype"]) if device_id and row["dtype"] else None
            if rate and row["max_achievable_tflops"]:
                assert float(row["max_achievable_tflops"]) * 1e12 <= rate
                checked += 1
    assert checked >= 20
