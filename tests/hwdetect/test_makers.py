"""AMD, Intel, Apple, TPU, Gaudi, Neuron and Ascend, from what their tools and the kernel print."""

from __future__ import annotations

import json

import pytest

from hwdetect.assemble import read_machine
from tests.hwdetect.memory_machine import MemoryMachine

MIB, GIB = 1 << 20, 1 << 30
PCI = "sys/bus/pci/devices"


def machine(files) -> object:
    return read_machine(MemoryMachine(files), 1)


def value(number, unit):
    return {"value": number, "unit": unit}


def static(index, **changes):
    """An entry of ``amd-smi static --json`` as ROCm 6 prints it."""
    return {
        "gpu": index,
        "asic": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "device_id": "0x74a1", "rev_id": "0x00",
                 "asic_serial": "0x5E3A1B", "oam_id": index, "num_compute_units": 304, "target_graphics_version": "gfx942"},
        "bus": {"bdf": f"0000:{index:02X}:00.0", "max_pcie_width": 16, "max_pcie_speed": value(32, "GT/s"),
                "pcie_interface_version": "Gen 5", "slot_type": "OAM"},
        "limit": {"max_power": value(750, "W"), "min_power": value(0, "W")},
        "driver": {"name": "amdgpu", "version": "6.10.5"},
        "numa": {"node": index // 4, "affinity": 0},
        "vram": {"type": "HBM", "vendor": "N/A", "size": value(196592, "MB"), "bit_width": 8192},
        "partition": {"accelerator_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
        **changes,
    }  # fmt: skip


METRIC = {"gpu": 0, "pcie": {"width": 16, "speed": value(32, "GT/s")}, "ecc": {"total_uncorrectable_count": 3},
          "temperature": {"edge": "N/A", "hotspot": value(54, "C")}, "mem_usage": {"used_vram": value(285, "MB")}}  # fmt: skip


def topology(count):
    return [
        {"gpu": a, "links": [{"gpu": b, "link_type": "SELF" if a == b else "XGMI", "bandwidth": "N/A" if a == b else "50000-64000"}
                             for b in range(count)]}
        for a in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrap", [lambda entries: entries, lambda entries: {"gpu_data": entries}], ids=["rocm6", "rocm7"]
)
def test_amd_smi(wrap):
    files = {
        "amd-smi-static.json": "WARNING: [low power]\n" + json.dumps(wrap([static(i) for i in range(8)])),
        "amd-smi-metric.json": json.dumps(wrap([METRIC, *({"gpu": i} for i in range(1, 8))])),
        "amd-smi-topology.json": json.dumps(topology(8)),
    }
    hardware = machine(files)
    first = hardware.boards[0]
    assert len(hardware.boards) == len(hardware.accelerators) == 8 and len(hardware.links) == 28
    assert (first.device, first.memory_bytes, first.compute_units) == ("mi300x", 196592 * MIB, 304)
    assert (first.pcie.generation, first.pcie.generation_max, first.pcie.width, first.pcie.width_max) == (5, 5, 16, 16)
    assert (first.temperature_c, first.ecc_errors, first.power_limit_watts, first.numa_node) == (54, 3, 750, 0)
    assert hardware.accelerators[0].free_memory_bytes == (196592 - 285) * MIB
    assert hardware.accelerators[1].free_memory_bytes is None
    assert {(k.kind, k.bandwidth_bytes_per_s) for k in hardware.links} == {("xgmi", 64e9)}
    assert hardware.software.driver == "6.10.5"


@pytest.mark.parametrize(
    "text", ["", "N/A", "[]", "{}", '{"gpu_data": 3}', '[{"gpu": 0}]', '[{"asic": "N/A", "vram": []}]', "[1,2"]
)
def test_amd_smi_that_says_little(text):
    hardware = machine({"amd-smi-static.json": text})
    assert all(b.memory_bytes is None and b.device is None for b in hardware.boards)


def test_partitions_of_an_mi300x_are_devices_with_their_share():
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {}
    for part in range(8):
        files[f"{nodes}/{part + 2}/properties"] = (
            f"simd_count 152\nsimd_per_cu 4\nvendor_id 4098\ndevice_id 29857\nlocation_id {0x500 + part}\nunique_id 7\n"
            f"num_xcc 1\ngfx_target_version 90402\n"
        )
        files[f"{nodes}/{part + 2}/mem_banks/0/properties"] = f"heap_type 1\nsize_in_bytes {24 * GIB}\n"
        files[f"{nodes}/{part + 2}/mem_banks/0/used_memory"] = f"{GIB}\n"
    hardware = machine(files)
    assert [(b.device, b.memory_bytes, b.compute_units) for b in hardware.boards] == [("mi300x", 192 * GIB, 304)]
    assert {(a.profile, a.memory_bytes, a.free_memory_bytes, a.compute_share, a.compute_units)
            for a in hardware.accelerators} == {("cpx", 24 * GIB, 23 * GIB, 0.125, 38)}  # fmt: skip
    assert len(hardware.accelerators) == 8 and not hardware.links


def drm(card, address, vendor, device, **more):
    folder = f"sys/class/drm/{card}/device"
    return {f"{folder}/vendor": vendor, f"{folder}/device": device, f"{folder}/uevent": f"PCI_SLOT_NAME={address}\n",
            **{f"{folder}/{name}": text for name, text in more.items()}}  # fmt: skip


def test_a_radeon_without_tools_is_read_from_the_kernel():
    hardware = machine(drm("card0", "0000:03:00.0", "0x1002", "0x744c", mem_info_vram_total=str(24560 * MIB),
                           current_link_speed="16.0 GT/s PCIe", current_link_width="8", max_link_speed="16.0 GT/s PCIe",
                           max_link_width="16", product_name="AMD Radeon RX 7900 XTX"))  # fmt: skip
    (board,) = hardware.boards
    assert (board.device, board.pcie.width, board.pcie.width_max, board.pcie.generation) == ("rx-7900-xtx", 8, 16, 4)


def pci(address, vendor, device, kind="0x030200", **more):
    return {f"{PCI}/{address}/{name}": text for name, text in
            {"vendor": vendor, "device": device, "class": kind, **more}.items()}  # fmt: skip


def discovery(*names):
    """``xpu-smi discovery -j``: cards without memory and tiles."""
    return json.dumps({"device_list": [
        {"device_function_type": "physical", "device_id": i, "device_name": name, "device_type": "GPU",
         "drm_device": f"/dev/dri/card{i + 1}", "pci_bdf_address": f"0000:{i + 41:02x}:00.0", "pci_device_id": "0xbd5",
         "uuid": "00000000-0000-0029-0000-002f0bd58086", "vendor_name": "Intel(R) Corporation"}
        for i, name in enumerate(names)]})  # fmt: skip


@pytest.mark.parametrize(("hierarchy", "count", "share"), [(None, 4, 0.5), ("FLAT", 4, 0.5), ("COMPOSITE", 2, 1.0)])
def test_tiles_of_an_intel_max(hierarchy, count, share):
    files = {"xpu-smi-discovery.json": discovery(*["Intel(R) Data Center GPU Max 1550"] * 2)}
    for i in range(2):
        address = f"0000:{i + 41:02x}:00.0"
        files |= pci(address, "0x8086", "0x0bd5", "0x038000", numa_node=str(i), current_link_width="16")
        files |= {f"{PCI}/{address}/drm/card{i}/lmem_total_bytes": str(128 * GIB)}
        files |= {f"{PCI}/{address}/drm/card{i}/gt/gt{tile}/id": "0" for tile in range(2)}
    if hierarchy:
        files["proc/self/environ"] = f"ZE_FLAT_DEVICE_HIERARCHY={hierarchy}"
    hardware = machine(files)
    assert [(b.device, b.memory_bytes, b.numa_node) for b in hardware.boards] == [
        ("max-1550", 128 * GIB, i) for i in range(2)
    ]
    assert len(hardware.accelerators) == count
    assert {(a.compute_share, a.memory_bytes) for a in hardware.accelerators} == {(share, int(128 * GIB * share))}


def test_graphics_of_an_intel_processor_is_no_accelerator():
    assert machine(pci("0000:00:02.0", "0x8086", "0x9a49", "0x030000")).boards == ()


def test_an_arc_under_the_xe_driver():
    files = pci("0000:03:00.0", "0x8086", "0xe20b", "0x030000", **{"tile0/physical_vram_size_bytes": hex(12216 * MIB)})
    (board,) = machine({**files, f"{PCI}/0000:03:00.0/drm/card0/x": ""}).boards
    assert (board.device, board.memory_bytes, board.state) == ("arc-b580", 12216 * MIB, "ok")


MAC = """hw.ncpu: 16
hw.activecpu: 16
hw.physicalcpu: 16
hw.packages: 1
hw.memsize: 137438953472
hw.nperflevels: 2
hw.perflevel0.logicalcpu: 12
hw.perflevel0.name: Performance
hw.perflevel0.l2cachesize: 16777216
hw.perflevel1.logicalcpu: 4
hw.perflevel1.name: Efficiency
hw.optional.arm64: 1
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SME: 1
machdep.cpu.brand_string: Apple M4 Max
"""


@pytest.mark.parametrize(
    ("limit", "memory"),
    [("", None), ("iogpu.wired_limit_mb: 0\n", None), ("iogpu.wired_limit_mb: 122880\n", 120 * GIB)],
)
def test_a_mac_and_its_limit_of_wired_memory(limit, memory):
    files = {
        "sysctl.txt": MAC + limit,
        "vm_stat.txt": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:  1000.\nPages inactive: 24.\n",
        "system_profiler-displays.json": json.dumps({"SPDisplaysDataType": [{"sppci_model": "Apple M4 Max", "sppci_cores": "40"}]}),
    }  # fmt: skip
    hardware = machine(files)
    (board,) = hardware.boards
    assert (board.device, board.unified_memory, board.memory_bytes, board.compute_units) == ("m4-max", True, None, 40)
    assert hardware.accelerators[0].memory_bytes == memory
    assert [(k.name, k.cpus) for k in hardware.cpu.core_kinds] == [("performance", 12), ("efficiency", 4)]
    assert {"bf16", "i8mm", "sme", "asimd"} <= set(hardware.cpu.isa_features)
    assert hardware.memory.total_bytes == 128 * GIB and hardware.memory.available_bytes == 1024 * 16384
    assert hardware.cpu.budget == 16


def test_a_mac_of_intel_has_no_such_accelerator():
    text = "hw.ncpu: 8\nhw.memsize: 17179869184\nmachdep.cpu.vendor: GenuineIntel\nmachdep.cpu.features: FPU AVX1.0\n"
    hardware = machine({"sysctl.txt": text + "machdep.cpu.brand_string: Intel(R) Core(TM) i7-4870HQ CPU @ 2.50GHz\n"})
    assert hardware.boards == () and hardware.cpu.architecture == "x86_64"


@pytest.mark.parametrize(
    ("device", "version"), [("0x0063", "v5e"), ("0x0062", "v5p"), ("0x006f", "v6e"), ("0x005e", "v4")]
)
def test_tpu_chips_by_their_pci_ids(device, version):
    files = {}
    for i in range(4):
        files |= pci(f"0000:00:{i + 4:02x}.0", "0x1ae0", device, "0x088000", numa_node="0")
    hardware = machine(files)
    assert [(b.name, b.device) for b in hardware.boards] == [(f"TPU {version}", f"tpu-{version}")] * 4
    assert len(hardware.accelerators) == 4


@pytest.mark.parametrize(
    ("environment", "boards", "nodes"),
    [
        ("TPU_ACCELERATOR_TYPE=v5litepod-16\0TPU_CHIPS_PER_HOST_BOUNDS=2,2,1", 4, 4),
        ("TPU_ACCELERATOR_TYPE=v4-8\0TPU_CHIPS_PER_HOST_BOUNDS=2,2,1", 4, 1),
        ("TPU_ACCELERATOR_TYPE=v6e-8\0TPU_CHIPS_PER_HOST_BOUNDS=2,4,1", 8, 1),
        ("TPU_ACCELERATOR_TYPE=v5p-128\0TPU_CHIPS_PER_HOST_BOUNDS=2,2,1", 4, 16),
        ("TPU_ACCELERATOR_TYPE=nonsense", 0, 1),
    ],
)
def test_a_slice_by_the_environment(environment, boards, nodes):
    hardware = machine({"proc/self/environ": environment, **{f"dev/accel{i}": "" for i in range(boards)}})
    assert len(hardware.boards) == len(hardware.accelerators) == boards and hardware.nodes.count == nodes


TPU_INFO = """TPU Chips
┏━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━┓
┃ Chip        ┃ Type         ┃ Devices ┃ PID    ┃
┡━━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━┩
│ /dev/vfio/0 │ TPU v6e chip │ 1       │ 130007 │
│ /dev/vfio/1 │ TPU v6e chip │ 1       │ 130007 │
└─────────────┴──────────────┴─────────┴────────┘
TPU Runtime Utilization
┏━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━┓
┃ Device ┃ Memory usage         ┃ Duty cycle ┃
┡━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━┩
│ 0      │ 18.45 GiB / 31.25 GiB │    100.00% │
│ 1      │ 10.00 GiB / 31.25 GiB │    100.00% │
└────────┴──────────────────────┴────────────┘
"""


def test_tpu_info():
    hardware = machine({"tpu-info.txt": TPU_INFO})
    assert [(b.device, b.memory_bytes) for b in hardware.boards] == [("tpu-v6e", int(31.25 * GIB))] * 2
    assert [round(a.free_memory_bytes / GIB, 2) for a in hardware.accelerators] == [12.8, 21.25]


def test_gaudi():
    rows = "index, uuid, name, memory.total [MiB], memory.used [MiB]\n" + "".join(
        f"{i}, 01P0-HL2080A0-15-TNPS34-0{i}-00-00-00, HL-225, 98304 MiB, 768 MiB\n" for i in range(8)
    )
    files = {"hl-smi.csv": rows}
    for i in range(8):
        files |= pci(f"0000:{i + 16:02x}:00.0", "0x1da3", "0x1020", "0x120000")
    hardware = machine(files)
    assert [b.device for b in hardware.boards] == ["gaudi2"] * 8
    assert hardware.accelerators[7].free_memory_bytes == (98304 - 768) * MIB


def test_gaudi_without_its_tool_is_known_by_its_pci_id():
    assert machine(pci("0000:19:00.0", "0x1da3", "0x1060", "0x120000")).boards[0].device == "gaudi3"


@pytest.mark.parametrize(
    ("product", "device"),
    [("trn1.32xlarge", "trainium"), ("inf2.xlarge", "inferentia2"), ("trn2.48xlarge", "trainium2"), ("", None)],
)
def test_neuron(product, device):
    listed = [{"neuron_device": i, "bdf": f"10:1{i}.0", "connected_to": None, "nc_count": 2, "memory_size": 32 * GIB,
               "neuron_processes": []} for i in range(2)]  # fmt: skip
    hardware = machine({"neuron-ls.json": json.dumps(listed), "sys/class/dmi/id/product_name": f"{product}\n"})
    assert [(b.device, b.memory_bytes, b.compute_units) for b in hardware.boards] == [(device, 32 * GIB, 2)] * 2
    assert machine({"dev/neuron0": "", "sys/class/dmi/id/product_name": product}).boards[0].device == device


NPU = """+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.9        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3355 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 93.0        42                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3349 / 65536         |
+===========================+===============+====================================================+
"""


def test_ascend():
    hardware = machine({"npu-smi.txt": NPU})
    assert [(b.name, b.vendor, b.memory_bytes, b.pci_address) for b in hardware.boards] == [
        ("Ascend 910B3", "huawei", 64 * GIB, "0000:c1:00.0"),
        ("Ascend 910B3", "huawei", 64 * GIB, "0000:01:00.0"),
    ]
    assert hardware.accelerators[0].free_memory_bytes == (65536 - 3355) * MIB
    assert [b.name for b in machine({"dev/davinci0": "", "dev/davinci1": "", "dev/davinci_manager": ""}).boards] == [
        "Ascend"
    ] * 2


@pytest.mark.parametrize(
    ("name", "mib", "device"),
    [("910A", 32768, "ascend-910"), ("910B", 32768, "ascend-910"), ("910ProB", 32768, "ascend-910"), ("910B", 65536, "ascend-910b3"),
     ("910", 65536, "ascend-910c"), ("910B4", 32768, "ascend-910b4")],
)  # fmt: skip
def test_the_910_of_2019_is_told_by_its_memory(name, mib, device):
    """npu-smi calls it 910B, which since 2022 is the name of another, of which every version has a number."""
    boards = machine({"npu-smi.txt": NPU.replace("910B3  ", name.ljust(7)).replace("65536", str(mib))}).boards
    assert {board.device for board in boards} == {device}


@pytest.mark.parametrize(
    ("module", "device"),
    [("p3668-0001", "jetson-xavier-nx-8gb"), ("p3668-0003", "jetson-xavier-nx-16gb"), ("p3767-0000", "jetson-orin-nx-16gb"),
     ("p3767-0001", "jetson-orin-nx-8gb"), ("p3767-0003", "jetson-orin-nano-8gb"), ("p3767-0004", "jetson-orin-nano-4gb"),
     ("p3701-0004", "jetson-agx-orin-32gb"), ("p2888-0001", "jetson-agx-xavier-16gb")],
)  # fmt: skip
def test_a_jetson_is_told_by_the_number_of_its_module(module, device):
    tree = {"proc/device-tree/model": "NVIDIA Jetson", "proc/device-tree/compatible": f"nvidia,p3509-0000+{module}\0"}
    assert [board.device for board in machine(tree).boards] == [device]


@pytest.mark.parametrize(
    ("model", "device"),
    [("NVIDIA Jetson AGX Orin 32 GB", "jetson-agx-orin-32gb"), ("NVIDIA Jetson AGX Orin Developer Kit", None),
     ("NVIDIA Jetson Xavier NX", None)],
)  # fmt: skip
def test_a_jetson_of_unknown_size_is_none_of_the_catalogue(model, device):
    assert [board.device for board in machine({"proc/device-tree/model": model}).boards] == [device]


@pytest.mark.parametrize(("subsystem", "device"), [("0x004e", "tpu-v2"), ("0x004f", "tpu-v3"), ("0x0001", None)])
def test_versions_2_and_3_of_the_tpu_have_one_id(subsystem, device):
    hardware = machine(pci("0000:00:04.0", "0x1ae0", "0x0027", "0x088000", subsystem_device=subsystem))
    assert [board.device for board in hardware.boards] == [device]
    assert any("nearest is TPU v2" in note.why for note in hardware.notes) == (device is None)


def test_devices_of_tpu_info_are_numbered_with_gaps():
    """A host of an ironwood slice: two devices a chip, numbered 0, 1, 4, 5."""
    text = TPU_INFO.replace("TPU v6e chip │ 1", "TPU7x chip   │ 2").replace(
        "│ 1      │ 10.00 GiB / 31.25 GiB │    100.00% │",
        "│ 1      │ 10.00 GiB / 31.25 GiB │    100.00% │\n│ 4      │ 1.00 GiB / 31.25 GiB │ 1.00% │\n│ 5      │ 2.00 GiB / 31.25 GiB │ 1.00% │",
    )
    hardware = machine({"tpu-info.txt": text})
    assert [(b.device, b.memory_bytes) for b in hardware.boards] == [("tpu-v7", int(62.5 * GIB))] * 2
    assert [round(a.free_memory_bytes / GIB, 2) for a in hardware.accelerators] == [34.05, 59.5]


def test_an_ascend_whose_name_has_a_dash():
    hardware = machine({"npu-smi.txt": NPU.replace("910B3  ", "910B4-1")})
    assert [(b.name, b.memory_bytes) for b in hardware.boards] == [("Ascend 910B4-1", 64 * GIB)] * 2


@pytest.mark.parametrize(
    ("code", "device"), [("HL-325L", "gaudi3"), ("HL-225", "gaudi2"), ("HL-225B", "gaudi2"), ("HL-338", "gaudi3")]
)
def test_codes_of_gaudi(code, device):
    memory = 131072 if device == "gaudi3" else 98304
    rows = f"index, uuid, name, memory.total [MiB], memory.used [MiB]\n0, 01P0-HL, {code}, {memory} MiB, 768 MiB\n"
    assert [b.device for b in machine({"hl-smi.csv": rows}).boards] == [device]


def test_neuron_ls_names_the_instance():
    entry = {"instance_type": "trn2.3xlarge", "instance_id": "i-0", "neuron_device": 0, "bdf": "0000:33:00.0", "cpu_affinity": "0-11",
             "numa_node": "0", "connected_to": None, "nc_count": 4, "logical_neuroncore_config": 2, "memory_size": 103079215104,
             "neuroncore_ids": [0, 1, 2, 3], "neuron_processes": []}  # fmt: skip
    (board,) = machine({"neuron-ls.json": json.dumps([entry])}).boards
    assert (board.device, board.memory_bytes, board.compute_units) == ("trainium2", 96 * GIB, 4)


def test_amd_smi_26_has_its_limits_nested_and_memory_in_the_metrics():
    limit = {"ppt0": {"socket_power_limit": value(1000, "W"), "max_power_limit": value(1400, "W")},
             "ppt1": {"socket_power_limit": "N/A", "max_power_limit": "N/A"}}  # fmt: skip
    asic = {**static(0)["asic"], "market_name": "AMD Instinct MI355X", "device_id": "0x75a3", "num_compute_units": 256}
    entry = static(0, limit=limit, asic=asic, vram="N/A")
    metric = {"gpu": 0, "mem_usage": {"total_vram": value(294896, "MB"), "used_vram": value(283, "MB")},
              "power": {"socket_power": value(239, "W")}, "temperature": {"hotspot": value(36, "C")}}  # fmt: skip
    hardware = machine(
        {
            "amd-smi-static.json": json.dumps({"gpu_data": [entry]}),
            "amd-smi-metric.json": json.dumps({"gpu_data": [metric]}),
        }
    )
    (board,) = hardware.boards
    assert (board.device, board.memory_bytes, board.power_limit_watts, board.power_default_watts) == (
        "mi355x",
        294896 * MIB,
        1000,
        1400,
    )
    assert hardware.accelerators[0].free_memory_bytes == (294896 - 283) * MIB


def test_xpu_smi_lists_more_than_cards():
    """Graphics of the processor, and functions for virtual machines."""
    listed = json.loads(discovery("Intel(R) Arc(TM) A770 Graphics"))["device_list"][0] | {
        "memory_physical_size_byte": "17102532608", "pci_device_id": "0x56A0"}  # fmt: skip
    others = [
        {**listed, "device_function_type": "virtual", "pci_bdf_address": "0000:29:00.1"},
        {**listed, "device_name": "Intel(R) UHD Graphics 770", "pci_bdf_address": "0000:00:02.0"},
        {**listed, "device_type": "NNP"},
    ]
    (board,) = machine({"xpu-smi-discovery.json": json.dumps({"device_list": [listed, *others]})}).boards
    assert (board.device, board.memory_bytes) == ("arc-a770", 17102532608)


def test_xpu_smi_2_says_no_memory_and_the_kernel_does():
    files = {"xpu-smi-discovery.json": discovery("Intel(R) Arc(TM) Pro B60 Graphics").replace("0xbd5", "0xe211")}
    address = "0000:29:00.0"
    files |= pci(address, "0x8086", "0xe211", "0x030000", **{"tile0/physical_vram_size_bytes": hex(24480 * MIB)})
    (board,) = machine({**files, f"{PCI}/{address}/drm/card0/x": ""}).boards
    assert (board.device, board.memory_bytes) == ("arc-pro-b60", 24480 * MIB)


def test_strix_halo_has_the_hosts_memory():
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {
        f"{nodes}/1/properties": "simd_count 80\nsimd_per_cu 2\nvendor_id 4098\ndevice_id 5510\nlocation_id 50432\ngfx_target_version 110501\n",
        f"{nodes}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {GIB // 2}\n",
    }
    (board,) = machine(files).boards
    assert (board.device, board.integrated, board.unified_memory, board.compute_units) == ("strix-halo", True, True, 40)


@pytest.mark.parametrize(
    ("environment", "files", "expected"),
    [
        ("PBS_JOBID=1.pbs\0PBS_NODEFILE=/var/spool/pbs/aux/1\0NCPUS=32\0NGPUS=4",
         {"var/spool/pbs/aux/1": "x1000\nx1000\nx1001\nx1001\n"}, ("pbs", 2, 32, 4, 4)),
        ("PBS_JOBID=2\0PBS_NUM_NODES=3\0PBS_NUM_PPN=16\0PBS_NP=48", {}, ("pbs", 3, 16, None, 48)),
        ("LSB_JOBID=7\0LSB_MCPU_HOSTS=batch1 1 g01n01 42 g01n02 42\0LSB_DJOB_NUMPROC=85",
         {"proc/sys/kernel/hostname": "g01n02.summit\n"}, ("lsf", 2, 42, None, 85)),
        ("LSB_JOBID=8\0LSB_MCPU_HOSTS=node9 8", {}, ("lsf", 1, 8, None, None)),
    ],
)  # fmt: skip
def test_jobs_of_pbs_and_lsf(environment, files, expected):
    nodes = machine({"proc/self/environ": environment, **files}).nodes
    assert (nodes.source, nodes.count, nodes.scheduler_cpus, nodes.scheduler_gpus, nodes.processes) == expected


@pytest.mark.parametrize(
    ("file", "who", "text", "why"),
    [
        ("amd-smi-static.json", "amd-smi", json.dumps([static(i) for i in range(8)])[:4000], "JSON of 4,000 characters"),
        ("amd-smi-static.json", "amd-smi", "ERROR:root:Unable to detect any GPU devices", "Unable to detect any GPU"),
        ("rocm-smi.json", "rocm-smi", '{"card0": {"Card Series": "MI', "JSON of 29 characters"),
        ("xpu-smi-discovery.json", "xpu-smi", '{"error": "Level Zero Initialization Error"}', "JSON of"),
        ("neuron-ls.json", "neuron-ls", '[{"neuron_device": 0, "bdf"', "JSON of"),
        ("npu-smi.txt", "npu-smi", "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed.", "failed"),
        ("hl-smi.txt", "hl-smi", "NOT SUPPORTED: no device", "NOT SUPPORTED"),
        ("tpu-info.txt", "tpu-info", "No TPU chips found.", "No TPU chips found"),
        ("nvidia-smi.xml", "nvidia-smi -q -x", "NVIDIA-SMI has failed because", "NVIDIA-SMI has failed"),
    ],
)  # fmt: skip
def test_a_tool_that_answers_without_a_board_is_noted(file, who, text, why):
    """amd-smi's and neuron-ls' answers, cut off or in words, gave a machine without accelerators and without a note."""
    hardware = machine({file: text})
    assert not hardware.boards
    (note,) = (n for n in hardware.notes if n.who == who and n.why.startswith("no board in its answer: "))
    assert note.field == "boards" and why in note.why and "5E3A1B" not in note.why
