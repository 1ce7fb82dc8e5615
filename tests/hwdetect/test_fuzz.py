"""Broken inputs never raise out of a probe: cut off, with NUL bytes, ANSI colours, lost tabs, other languages."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwdetect import findings, view
from hwdetect.assemble import read_machine
from hwdetect.jsonio import convert_to_mapping, parse_hardware
from tests.hwdetect.conftest import index_rows
from tests.hwdetect.memory_machine import MemoryMachine

KFD = "sys/class/kfd/kfd/topology/nodes"
CPU = "sys/devices/system/cpu"
SEEDS: dict[str, str] = {
    "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: lm avx2 avx512f\n\n"
    "processor\t: 1\nvendor_id\t: GenuineIntel\nflags\t\t: lm avx2\n",
    "proc/meminfo": "MemTotal:       16384 kB\nMemAvailable:    8192 kB\nHugePages_Total: 2\nHugepagesize: 2048 kB\n",
    "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-1\n",
    "proc/self/cgroup": "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/a\n",
    "proc/self/mountinfo": "8 5 0:7 /a /sys/fs/cgroup/cpu rw shared:8 - cgroup cgroup rw,cpu\n34 33 0:29 / /sys/fs/cgroup rw - "
    "cgroup2 cgroup rw\n",
    "sys/fs/cgroup/cpu/b/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/b/cpu.cfs_period_us": "100000\n",
    f"{CPU}/online": "0-1\n",
    f"{CPU}/cpu0/topology/core_cpus_list": "0\n",
    f"{CPU}/cpu1/topology/core_cpus": "00000000,00000002\n",
    f"{CPU}/cpu0/cache/index0/level": "1\n",
    f"{CPU}/cpu0/cache/index0/type": "Data\n",
    f"{CPU}/cpu0/cache/index0/size": "32K\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:  16384 kB\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/numa_status": "Node: 0\n",
    "nvidia-smi.xml": '<?xml version="1.0" ?>\n<nvidia_smi_log><driver_version>590.1</driver_version><attached_gpus>1'
    '</attached_gpus><gpu id="00000000:01:00.0"><product_name>X</product_name><fb_memory_usage><total>8192 MiB</total>'
    "</fb_memory_usage><mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device><index>0</index>"
    "<gpu_instance_id>7</gpu_instance_id></mig_device></mig_devices><pci><pci_gpu_link_info><link_widths>"
    "<max_link_width>16x</max_link_width></link_widths></pci_gpu_link_info></pci></gpu></nvidia_smi_log>",
    "nvidia-smi-q.txt": "====NVSMI LOG====\nDriver Version    : 590\nGPU 00000000:01:00.0\n    Product Name   : X\n"
    "    FB Memory Usage\n        Total   : 8192 MiB\n",
    "nvidia-smi-list.txt": "GPU 0: X (UUID: GPU-1)\n  MIG 1g.5gb  Device  0: (UUID: MIG-1)\n",
    "nvidia-smi-topo.txt": "\t\x1b[4mGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \tNV4\tPXB\t0-3\t0\n"
    "GPU1\tNV4\t X \tNODE\t0-3\tN/A\n",
    "nvidia-smi-nvlink.txt": "GPU 0: X (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n",
    "nvidia-smi-query.csv": "index, name, uuid, pci.bus_id, compute_cap, memory.total [MiB]\n0, X, GPU-1, 00000000:01:00.0, 9.0, 8192 MiB\n",
    "rocm-smi.json": json.dumps(
        {
            "card0": {
                "Card Series": "MI",
                "VRAM Total Memory (B)": "8589934592",
                "pcie clock level": "1 (16.0GT/s x16)",
            },
            "system": {"(Topology) Link type between DRM devices 0 and 1": "XGMI"},
        }
    ),
    "amd-smi-static.json": json.dumps(
        [{"gpu": 0, "asic": {"market_name": "MI"}, "vram": {"size": {"value": 1, "unit": "GB"}}}]
    ),
    "xpu-smi-discovery.json": json.dumps({"device_list": [{"device_name": "Max", "number_of_tiles": 2}]}),
    f"{KFD}/1/properties": "simd_count 256\nsimd_per_cu 4\nvendor_id 4098\ndevice_id 26720\nlocation_id 6400\nunique_id 14073402507705256557\n",
    f"{KFD}/2/properties": "simd_count 256\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 6656\nnum_xcc 1\ngfx_target_version 90402\n",
    f"{KFD}/1/io_links/0/properties": "type 11\nnode_from 1\nnode_to 2\nmax_bandwidth 50000\n",
    "nccl-topo.xml": '<system version="1"><cpu numaid="0" arch="x86_64"><pci busid="0000:01:00.0" class="0x030200" '
    'link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80"><nvlink target="0000:02:00.0" count="4"/></gpu></pci>'
    '<pci busid="0000:02:00.0" class="0x030200"><gpu dev="1" sm="80"/></pci><nic><net name="eth0" speed="1000"/></nic></cpu></system>',
    "hwloc.xml": '<topology version="2.0"><object type="Machine"><object type="Package"><object type="Core"><object type="PU"/>'
    '</object></object><object type="PCIDev" pci_type="0302 [10de:1094] [0:0]" pci_busid="0000:03:00.0"/></object>'
    '<distances2hetero name="NVLinkBandwidth"><indexes>OSDev:1 OSDev:2</indexes><u64values>0 1 1 0</u64values></distances2hetero></topology>',
    "mlperf-system.json": json.dumps(
        {"accelerators_per_node": "8", "accelerator_model_name": "H100", "number_of_nodes": "2"}
    ),
    "cpuid/pu0": "1 0 0 0 0 => d 68747541 444d4163 69746e65\n1 1 0 0 0 => 800f12 300800 7ed8320b 178bfbff\n5 b 0 0 0 => 1 2 100 2\n",
    "cpuid.csv": "0, 0, 20, 1970169159, 1818588270, 1231384169\n1, 0, 198356, 34605056, 2147154879, 3219913727\n",
    "sysctl.txt": "hw.ncpu: 8\nhw.memsize: 17179869184\nmachdep.cpu.brand_string: Apple M2\nhw.optional.arm64: 1\nhw.nperflevels: 2\n",
    "amd-smi-metric.json": json.dumps(
        [{"gpu": 0, "mem_usage": {"used_vram": {"value": 1, "unit": "MB"}}, "pcie": {"width": 16}}]
    ),
    "amd-smi-topology.json": json.dumps([{"gpu": 0, "links": [{"gpu": 1, "link_type": "XGMI", "bandwidth": "1-2"}]}]),
    "vm_stat.txt": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free: 12.\n",
    "system_profiler-displays.json": json.dumps({"SPDisplaysDataType": [{"sppci_cores": "10"}]}),
    "tpu-info.txt": "│ /dev/accel0 │ TPU v4 chip │ 1       │ 130007 │\n│ 0      │ 18.45 GiB / 31.25 GiB │\n",
    "hl-smi.csv": "index, uuid, name, memory.total [MiB], memory.used [MiB]\n0, 01P0, HL-225, 98304 MiB, 768 MiB\n",
    "neuron-ls.json": json.dumps([{"neuron_device": 0, "bdf": "10:1c.0", "nc_count": 2, "memory_size": 34359738368}]),
    "npu-smi.txt": "| 0     910B3  | OK  | 91.9  41   0    / 0  |\n| 0   | 0000:C1:00.0  | 0    0    / 0   3355 / 65536 |\n",
    "proc/self/environ": "CUDA_VISIBLE_DEVICES=0,GPU-1\0ROCR_VISIBLE_DEVICES=0\0ZE_AFFINITY_MASK=0.1\0SLURM_JOB_ID=1\0"
    "SLURM_JOB_GPUS=0-3\0TPU_ACCELERATOR_TYPE=v5litepod-8\0PET_NNODES=1:2\0WORLD_SIZE=4",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/net/eth0/type": "1\n",
    "sys/class/net/eth0/speed": "1000\n",
    "sys/class/net/eth0/device/vendor": "0x8086\n",
    "sys/class/drm/card0/device/vendor": "0x1002\n",
    "sys/class/drm/card0/device/device": "0x744c\n",
    "sys/class/drm/card0/device/mem_info_vram_total": "25753026560\n",
    "sys/class/drm/card0/device/current_link_speed": "16.0 GT/s PCIe\n",
    "sys/class/drm/card0/device/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/device": "0x2330\n",
    "sys/bus/pci/devices/0000:01:00.0/numa_node": "0\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.48.01  Thu\n",
    "etc/os-release": 'PRETTY_NAME="Debian"\n',
    "sys/class/dmi/id/product_name": "trn1.2xlarge\n",
    "machine.json": json.dumps({"schema": 1, "software": {"python": "3.11"}}),
}
ODD = st.sampled_from(
    ["\0", "\x1b[4m", "\x1b[0m", "\t", "", " ", "\n", "N/A", "[N/A]", "Not Supported", "-1", "99999999999999999999", "1e400", "ありません",
     "0,5", "١٢", "\ud7ff", "<", "&x;", "{", "]", "null", "NaN", '"', "/../..", "%s", "\r\n", "²", "1_0"]
)  # fmt: skip


@st.composite
def broken(draw, text: str) -> bytes:
    """The text after a few accidents."""
    for _ in range(draw(st.integers(0, 4))):
        place, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
        kind = draw(st.sampled_from(("cut", "insert", "replace", "lose tabs", "repeat")))
        if kind == "cut":
            text = text[:place]
        elif kind == "lose tabs":
            text = text.replace("\t", "", draw(st.integers(1, 5)))
        elif kind == "repeat":
            text = text[:place] + text[place : place + 200] * draw(st.integers(1, 3)) + text[place:]
        else:
            text = text[:place] + draw(ODD) + text[place + (length if kind == "replace" else 0) :]
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        if raw:
            raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw)


def holds(files: dict[str, bytes]) -> None:
    hardware = read_machine(MemoryMachine(files), 4.0)
    hardware_and_findings = findings.find_problems(hardware)
    assert parse_hardware(json.loads(json.dumps(convert_to_mapping(hardware)))) == hardware
    assert view.render(hardware) and isinstance(hardware_and_findings, tuple)
    assert json.dumps(convert_to_mapping(hardware), ensure_ascii=False).isprintable(), "a terminal would obey it"
    assert all(line.isprintable() for line in view.render(hardware).split("\n"))


# New seeds on every run: 1500 draws are some 25 seconds; HWDETECT_FUZZ_DRAWS=100000 is for a night.
@settings(
    max_examples=int(os.environ.get("HWDETECT_FUZZ_DRAWS", "1500")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_no_broken_file_raises(data):
    names = data.draw(st.lists(st.sampled_from(sorted(SEEDS)), min_size=1, max_size=8, unique=True))
    holds({name: data.draw(broken(SEEDS[name])) for name in names})


@pytest.mark.parametrize("name", sorted(SEEDS))
@pytest.mark.parametrize(
    "content", [b"", b"\0", b"\xff\xfe", b"\n\n\n", b"[" * 5000, b"<a>" * 3000, b"NVIDIA-SMI has failed"]
)
def test_no_worthless_file_raises(name, content):
    holds({name: content})


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_no_file_gives_a_terminal_orders(name):
    """The system's name was printed as /etc/os-release has it: with a title, a cleared screen, text from right to left."""
    orders = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
    whole = SEEDS[name]
    escaped = json.dumps(orders)[1:-1] if whole.lstrip()[:1] in "[{" else orders
    for word in ("Debian", "Xeon", "MI", "X", "Max", "Apple M2", "3.11", "Intel"):
        holds({name: whole.replace(word, word + escaped).encode("utf-8", "surrogatepass")})


def test_whole_seeds_are_read():
    hardware = read_machine(
        MemoryMachine({k: v for k, v in SEEDS.items() if k not in ("machine.json", "sysctl.txt", "cpuid.csv")}), 4.0
    )
    assert hardware.cpu.quota == 1.5 and hardware.cpu.budget == 2 and hardware.boards


@pytest.mark.parametrize(
    "row",
    [
        r
        for r in index_rows()
        if r["kind"] in ("nvidia-smi-xml", "rocm-smi-json", "nccl-topo-xml", "hwloc-xml", "mlperf-system-json")
    ][::6],
    ids=lambda row: row["id"],
)
def test_real_files_cut_anywhere(row, recordings):
    (file,) = [p for p in recordings(row["id"]).rglob("*") if p.is_file()]
    raw = file.read_bytes()
    for part in range(1, 24):
        cut = raw[: len(raw) * part // 24]
        holds({file.name: cut})
        holds({file.name: cut + b"\0\x1b[4m" + raw[len(raw) * part // 24 :]})
