"""Which device a board is: PCI id, compute capability and memory first, the name only as confirmation."""

import csv
import json
import re
from pathlib import Path

import pytest

from hwdetect import catalog
from hwdetect.catalog.matching import find_best_match

SHARED = Path(__file__).resolve().parents[2] / "../shared"
MIB = 2**20
needs_shared = pytest.mark.skipif(
    not (SHARED / "hardware").is_dir(), reason="needs the shared folder beside the repository"
)


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H200 141GB HBM3e"])
@pytest.mark.parametrize("mib", [143771, 144384])
@pytest.mark.parametrize("pci_id", ["10de:2335", "0x233510DE", "0x2335", None])
def test_an_h200_by_any_name(name, mib, pci_id):
    assert catalog.match("nvidia", name, pci_id, "9.0", mib * MIB) == "h200-sxm-141gb"


@pytest.mark.parametrize(
    ("name", "pci_id", "capability", "mib"),
    [
        ("NVIDIA H100 80GB HBM3", "10de:2330", "9.0", 143771),  # the memory contradicts the id
        ("NVIDIA H100 80GB HBM3", "10de:2330", "8.0", 81559),  # the capability does
        ("NVIDIA H200", None, "9.0", 81559),  # the memory contradicts the name
        ("NVIDIA H200", None, None, None),  # a name alone is no proof
        ("Graphics Device", None, "7.5", 6144),  # numbers alone neither
        (None, "10de:ffff", "9.0", 81559),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, "8.9", 24564),
        ("NVIDIA GeForce RTX 2080 Laptop GPU", None, "7.5", 8192),
        ("GRID A100-10C", None, "8.0", 10240),
        ("NVIDIA Z900", "10de:ffff", "13.0", 400000),
    ],
)
def test_an_unknown_board_is_unknown(name, pci_id, capability, mib):
    assert catalog.match("nvidia", name, pci_id, capability, mib * MIB if mib else None) is None


def test_a_generic_name_is_matched_by_its_pci_id():
    assert catalog.match("nvidia", "Graphics Device", "0x218210DE", None, 5912 * MIB) == "gtx-1660-ti"


def test_a_shared_pci_id_is_told_apart_by_memory_then_by_name():
    assert catalog.match("amd", None, "1002:744c", None, 20464 * MIB) == "rx-7900-xt"
    assert catalog.match("amd", None, "1002:744c", None, 24560 * MIB) == "rx-7900-xtx"
    assert catalog.match("nvidia", "NVIDIA A2", "10de:25b6", "8.6", 15356 * MIB) == "a2"
    assert catalog.match("nvidia", "NVIDIA A16", "10de:25b6", "8.6", 15356 * MIB) == "a16"
    assert catalog.match("nvidia", None, "10de:25b6", "8.6", 15356 * MIB) is None


@pytest.mark.parametrize("device", catalog.list_devices(), ids=lambda d: d.id)
def test_every_device_matches_itself(device):
    pci_ids = device.pci_ids or (None,)
    for pci_id in pci_ids:
        matched = catalog.match(device.vendor, device.name, pci_id, device.compute_capability, device.memory_bytes)
        assert matched == device.id
    assert catalog.match_text(device.name) == device.id


@pytest.mark.parametrize("device", catalog.list_devices(), ids=lambda d: d.id)
def test_the_quick_search_finds_what_a_search_of_all_finds(device):
    for name in (device.id, device.name, *device.aliases):
        assert catalog.match_text(name) == find_best_match(name, catalog.list_devices())


@pytest.mark.parametrize(
    ("text", "device_id"),
    [
        ("NVIDIA H100-SXM5-80GB", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe 80 GB", "h100-pcie-80gb"),
        ("H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100 SXM 48GB", None),
        ("GeForce RTX 3080", "rtx-3080"),
        ("GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", "rtx-3080-ti-laptop"),
        ("NVIDIA GeForce RTX 2080 Laptop GPU", None),
        ("RTX4090", "rtx-4090"),
        ("RTX 4090 D", "rtx-4090-d"),
        ("RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("Intel(R) Data Center GPU Max 1550", "max-1550"),
        ("Apple M2 Ultra", "m2-ultra"),
        ("Apple M2", "m2"),
        ("an H-something", None),
        ("", None),
    ],
)
def test_text(text, device_id):
    assert catalog.match_text(text) == device_id


@needs_shared
def test_what_submitters_write_means_the_device_of_the_table():
    expected = {"H100-SXM": "h100-sxm-80gb", "H200-SXM": "h200-sxm-141gb", "B200-SXM": "b200-sxm-180gb"}
    expected["B300-SXM"] = "b300-sxm-270gb"
    with (SHARED / "hardware/TRUTH_SYSTEMS.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 50
    for row in rows:
        device_id = expected.get(row["device"], row["device"].lower())
        assert catalog.match_text(row["accelerator_as_written"]) == device_id, row["id"]
        assert catalog.match_text(row["device"]) == device_id


@needs_shared
def test_every_recorded_board_is_the_right_device_or_unknown():
    """Name, memory and compute capability from the truth table; the PCI id where its note has one."""
    right = {
        "NVIDIA A10G": "a10g",
        "Graphics Device": None,
        "Quadro P400": "quadro-p400",
        "NVIDIA GeForce RTX 3060": "rtx-3060",
        "NVIDIA GeForce RTX 3080": "rtx-3080",
        "NVIDIA GeForce RTX 3090": "rtx-3090",
        "Tesla T4": "t4",
        "NVIDIA GeForce RTX 2080 SUPER": "rtx-2080-super",
        "NVIDIA GeForce RTX 4080 SUPER": "rtx-4080-super",
        "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
        "NVIDIA H200": "h200-sxm-141gb",
        "NVIDIA H200 141GB HBM3e": "h200-sxm-141gb",
        "NVIDIA B200 180GB HBM3e": "b200-sxm-180gb",
        "Mock NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
        "Arcturus GL-XL [Instinct MI100]": "mi100",
        "Radeon Instinct MI50 32GB": "mi50-32gb",
        "Navi 22 [Radeon RX 6700/6700 XT / 6800M]": "rx-6700-xt",
    }
    with (SHARED / "hardware/TRUTH_GPU.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] in right]
    assert len(rows) >= 20
    for row in rows:
        vendor = "amd" if row["kind"] == "rocm-smi-json" else "nvidia"
        noted = re.search(r"pci device id (0x[0-9a-f]{4})", row["note"])
        memory = int(row["memory_mib"]) * MIB
        matched = catalog.match(vendor, row["name"], noted and noted[1], row["compute_capability"] or None, memory)
        assert matched == right[row["name"]], row["id"]


@needs_shared
def test_the_boards_of_the_fake_nvml_match_by_pci_id_and_name():
    for path in sorted((SHARED / "hardware/nvml").glob("*.json")):
        for key, gpu in json.loads(path.read_text())["gpus"].items():
            if "PciDeviceId" not in gpu:
                continue
            memory = int(gpu["MemoryMB"]) * MIB
            capability = f"{gpu['CudaMajor']}.{gpu['CudaMinor']}"
            matched = catalog.match("nvidia", gpu["Name"], gpu["PciDeviceId"], capability, memory)
            family, form = key.lower().split("_")[:2]
            assert matched and matched.startswith(family), key
            if family in ("a100", "h100"):  # the families that exist in both forms
                assert form.rstrip("45") in matched, key


@pytest.mark.parametrize(
    ("name", "physical"),
    [
        ("GRID A100D-10C", "A100 80GB PCIe"),
        ("NVIDIA A100-1-5C", "A100-SXM4-40GB"),
        ("NVIDIA H100XM-80C", "H100 80GB HBM3"),
        ("GRID RTX6000-24Q", "Quadro RTX 6000"),
        ("NVIDIA L40S-24C", "L40S"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA H100 80GB HBM3", None),
        ("NVIDIA GeForce RTX 4090", None),
        (None, None),
    ],
)
def test_names_of_virtual_gpus(name, physical):
    from hwdetect.catalog.matching import find_physical_name

    assert find_physical_name(name) == physical


@pytest.mark.parametrize(
    ("pci_id", "expected"),
    [("1ae0:0063", "tpu-v5e"), ("1ae0:0062", "tpu-v5p"), ("1ae0:006f", "tpu-v6e"), ("1ae0:ffff", None)],
)
def test_tpus_by_their_pci_ids(pci_id, expected):
    assert catalog.match("google", None, pci_id, None, None) == expected


@pytest.mark.parametrize(
    ("name", "pci_id", "device"),
    [
        ("AMD Radeon RX 6700 XT", "1002:73df", "rx-6700-xt"),
        ("AMD Radeon RX 6750 XT", "1002:73df", "rx-6750-xt"),
        ("AMD Radeon RX 6850M XT", "1002:73df", None),
        ("AMD Radeon Graphics", "1002:73df", None),
        ("Navi 22 [Radeon RX 6700/6700 XT/6750 XT / 6800M/6850M XT]", "1002:73df", None),
    ],
)
def test_a_name_with_another_number_refutes_an_id(name, pci_id, device):
    """Makers give one id to several products, of which the catalogue may have one."""
    assert catalog.match("amd", name, pci_id, None, 12272 * MIB) == device
