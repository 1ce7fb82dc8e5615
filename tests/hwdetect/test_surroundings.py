"""The allocation of a job, containers, virtual machines, WSL, ports and disks."""

from __future__ import annotations

import pytest

from hwdetect.assemble import read_machine
from hwdetect.machine.live import Live
from hwdetect.machine.protocol import Space
from hwdetect.pci_vendors import PCI_VENDORS
from hwdetect.probes.disks import read_disks
from hwdetect.probes.network import read_network
from hwdetect.probes.nodes import read_nodes
from hwdetect.probes.notes import Notes
from hwdetect.probes.software import read_software
from hwdetect.types import Nodes
from tests.hwdetect.memory_machine import MemoryMachine


def job(text: str) -> Nodes:
    return read_nodes(MemoryMachine({"proc/self/environ": text.replace(" ", "\0")}))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("", Nodes()),
        (
            "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_CPUS_ON_NODE=64 SLURM_GPUS_ON_NODE=4 SLURM_MEM_PER_NODE=2048 "
            "SLURM_NTASKS=8 SLURM_PROCID=3",
            Nodes(
                count=2,
                source="slurm",
                scheduler_cpus=64,
                scheduler_gpus=4,
                scheduler_memory_bytes=2 << 30,
                processes=8,
                rank=3,
            ),
        ),
        (
            "SLURM_JOBID=7 SLURM_NNODES=1 SLURM_JOB_GPUS=0,2-3 SLURM_CPUS_ON_NODE=4 SLURM_MEM_PER_CPU=1024",
            Nodes(source="slurm", scheduler_cpus=4, scheduler_gpus=3, scheduler_memory_bytes=4 << 30),
        ),
        (
            "SLURM_JOB_ID=7 SLURM_GPUS_PER_NODE=a100:4 SLURM_MEM_PER_GPU=512",
            Nodes(source="slurm", scheduler_gpus=4, scheduler_memory_bytes=2 << 30),
        ),
        ("SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=many", Nodes(source="slurm")),
        (
            "WORLD_SIZE=16 LOCAL_WORLD_SIZE=8 RANK=9 MASTER_ADDR=h",
            Nodes(count=2, source="torchrun", processes=16, rank=9),
        ),
        ("WORLD_SIZE=4 MASTER_ADDR=h RANK=0 PET_NNODES=4", Nodes(count=4, source="torchrun", processes=4, rank=0)),
        ("WORLD_SIZE=4", Nodes()),
        (
            "OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_RANK=5",
            Nodes(count=2, source="mpi", processes=8, rank=5),
        ),
        (
            "PMI_SIZE=6 PMI_RANK=1 MPI_LOCALNRANKS=3 HYDRA_CONTROL_FD=9",
            Nodes(count=2, source="mpi", processes=6, rank=1),
        ),
        ("PALS_SIZE=8 PALS_LOCAL_SIZE=2 PALS_RANK=7", Nodes(count=4, source="mpi", processes=8, rank=7)),
        (
            "MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_SIZE=4 MV2_COMM_WORLD_RANK=0",
            Nodes(source="mpi", processes=4, rank=0),
        ),
        ("KUBERNETES_SERVICE_HOST=10.0.0.1 PET_NNODES=1:4", Nodes(source="kubernetes")),
        (
            "SLURM_JOB_ID=7 SLURM_NNODES=2 WORLD_SIZE=16 LOCAL_WORLD_SIZE=8 MASTER_ADDR=h",
            Nodes(count=2, source="slurm"),
        ),
    ],
)
def test_a_job_sees_its_allocation(environment, expected):
    assert job(environment) == expected


CONTAINERD = "1 0 0:1 /var/lib/{0}/x /etc/hostname rw - ext4 /dev/sda rw\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({".singularity.d/runscript": ""}, "apptainer"),
        ({"proc/1/cgroup": "0::/kubepods/x\n"}, "kubernetes"),
        ({"proc/self/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "0::/\n", "proc/self/mountinfo": CONTAINERD.format("docker/containers")}, "docker"),
        ({"proc/self/mountinfo": CONTAINERD.format("kubelet/pods")}, "kubernetes"),
        ({"proc/self/mountinfo": "1 0 0:1 / /var/lib/docker/containers/a/shm rw - tmpfs shm rw\n"}, None),
    ],
)
def test_containers(files, expected):
    assert read_software(MemoryMachine(files), Notes()).container == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, "qemu"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "amazon"),
        ({"sys/class/dmi/id/product_name": "Google Compute Engine\n"}, "google"),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
                "sys/class/dmi/id/product_name": "Virtual Machine\n",
            },
            "hyper-v",
        ),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({"proc/cpuinfo": "processor: 0\nflags : fpu hypervisor lm\n"}, "vm"),
        ({"proc/cpuinfo": "processor: 0\nflags : fpu lm\n"}, "none"),
        ({}, None),
    ],
)
def test_virtual_machines(files, expected):
    assert read_software(MemoryMachine(files), Notes()).virtualization == expected


@pytest.mark.parametrize(
    ("kernel", "wsl"), [("5.15.167.4-microsoft-standard-WSL2\n", True), ("6.8.0-45-generic\n", False), (None, None)]
)
def test_wsl(kernel, wsl):
    files = {} if kernel is None else {"proc/sys/kernel/osrelease": kernel}
    assert read_software(MemoryMachine(files), Notes()).wsl is wsl


def rdma(name, layer="InfiniBand", rate="400 Gb/sec (4X NDR)", state="4: ACTIVE"):
    folder = f"sys/class/infiniband/{name}/ports/1"
    return {f"{folder}/link_layer": layer, f"{folder}/rate": rate, f"{folder}/state": state}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (rdma("mlx5_0"), ("mlx5_0/1", "infiniband", 50e9, "active")),
        (rdma("mlx5_0", "Ethernet", "200 Gb/sec (4X HDR)"), ("mlx5_0/1", "roce", 25e9, "active")),
        (rdma("rdmap0s6", "Unspecified", "100 Gb/sec (4X EDR)"), ("rdmap0s6/1", "efa", 12.5e9, "active")),
        (rdma("mlx4_0", state="1: DOWN"), ("mlx4_0/1", "infiniband", 50e9, "down")),
        (rdma("mlx4_0", rate="nonsense"), ("mlx4_0/1", "infiniband", None, "active")),
    ],
)
def test_rdma_ports(files, expected):
    (port,) = read_network(MemoryMachine(files))
    assert (port.name, port.kind, port.rate_bytes_per_s, port.state) == expected


@pytest.mark.parametrize(("speed", "rate"), [("100000\n", 12.5e9), ("-1\n", None), ("", None), ("4294967295", None)])
def test_ethernet(speed, rate):
    folder = "sys/class/net/eth0"
    files = {
        f"{folder}/type": "1\n",
        f"{folder}/device/vendor": "0x1",
        f"{folder}/speed": speed,
        f"{folder}/operstate": "up\n",
    }
    (port,) = read_network(MemoryMachine({**files, "sys/class/net/lo/type": "772\n"}))
    assert (port.name, port.rate_bytes_per_s, port.state) == ("eth0", rate, "active")


@pytest.mark.parametrize(
    ("row", "files", "kind"),
    [
        (
            "1 0 259:1 / / rw - ext4 /dev/nvme0n1p1 rw",
            {"sys/dev/block/259:1": "sys/devices/x/nvme0n1/nvme0n1p1"},
            "nvme",
        ),
        (
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            {"sys/dev/block/8:1": "sys/devices/x/sda/sda1", "rotational": "1"},
            "hdd",
        ),
        (
            "1 0 8:1 / / rw - xfs /dev/sda1 rw",
            {"sys/dev/block/8:1": "sys/devices/x/sda/sda1", "rotational": "0"},
            "ssd",
        ),
        ("1 0 0:50 / / rw - nfs4 server:/home rw", {}, "network"),
        ("1 0 0:51 / / rw - lustre mgs@tcp:/scratch rw", {}, "network"),
        ("1 0 0:52 / / rw - tmpfs tmpfs rw", {}, "memory"),
        ("1 0 0:53 / / rw - overlay overlay rw", {}, "overlay"),
        ("1 0 252:0 / / rw - ext4 /dev/vda rw", {"sys/dev/block/252:0": "sys/devices/x/vda"}, "virtual"),
        ("1 0 7:0 / / rw - ext4 /dev/what rw", {}, None),
    ],
)
def test_disks(row, files, kind, tmp_path, monkeypatch):
    class Staged(Live):
        def read(self, path):
            if path == "proc/self/mountinfo":
                return row + "\n"
            return files.get("rotational") if path == "sys/devices/x/sda/queue/rotational" else None

        def resolve_link(self, path):
            return files.get(path) if path.startswith("sys/") else path

        def exists(self, path):
            return path == "sys/devices/x/sda/queue" or not path.startswith("sys/")

        def list_folder(self, path):
            return ()

        def get_space(self, path):
            return Space(total_bytes=100, free_bytes=40, writable=True)

    disks = read_disks(Staged(1.0), Notes())
    assert {disk.role for disk in disks} == {"work", "cache", "tmp"} and {disk.kind for disk in disks} == {kind}
    assert {(disk.total_bytes, disk.free_bytes) for disk in disks} == {(100, 40)}


def test_boards_below_nvswitches_are_joined_by_what_both_have_to_them():
    """hwloc's matrix has each board's rate to each switch, and none between boards (hwloc 2.5 on; topology-nvml.c)."""
    switches = "".join(
        f'<object type="PCIDev" gp_index="{20 + i}" pci_busid="0000:0{i}:00.0" pci_type="0680 [10de:22a3] [10de:1796] a1"/>'
        for i in range(2)
    )
    boards = "".join(
        f'<object type="PCIDev" gp_index="{30 + i}" pci_busid="0000:1{i}:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1">'
        f'<object type="OSDev" gp_index="{10 + i}" name="nvml{i}"><info name="GPUModel" value="NVIDIA H100 80GB HBM3"/></object></object>'
        for i in range(3)
    )
    rates = [[0] * 5 for _ in range(5)]
    for board in range(3):
        for switch in (3, 4):
            rates[board][switch] = rates[switch][board] = 112500 * (1 + switch % 2)
    names = "OSDev:10 OSDev:11 OSDev:12 PCIDev:20 PCIDev:21"
    values = " ".join(str(rate) for row in rates for rate in row)
    text = (
        f'<topology version="2.0"><object type="Machine" gp_index="1">{switches}{boards}</object>'
        f'<distances2hetero nbobjs="5" kind="40" name="NVLinkBandwidth"><indexes length="{len(names)}">{names}</indexes>'
        f'<u64values length="{len(values)}">{values}</u64values></distances2hetero></topology>'
    )
    hardware = read_machine(MemoryMachine({"hwloc.xml": text}), 1)
    assert [(k.a, k.b, k.kind, k.bandwidth_bytes_per_s) for k in hardware.links] == [
        (0, 1, "nvswitch", 337500e6), (0, 2, "nvswitch", 337500e6), (1, 2, "nvswitch", 337500e6)
    ]  # fmt: skip
    assert len(hardware.boards) == 3


@pytest.mark.parametrize(("vendor", "number"), PCI_VENDORS.items())
def test_topology_files_know_every_maker(vendor, number):
    """Each had a table of its own: hwloc's had no Trainium or TPU, NCCL's no Gaudi."""
    nccl = (
        '<system version="1"><cpu numaid="0" arch="x86_64">'
        f'<pci busid="0000:01:00.0" class="0x120000" vendor="0x{number}" device="0x1020"/></cpu></system>'
    )
    hwloc = (
        '<topology version="2.0"><object type="Machine"><object type="PCIDev" gp_index="9" pci_busid="0000:01:00.0" '
        f'pci_type="1200 [{number}:1020] [0000:0000] 01"/></object></topology>'
    )
    for files in ({"nccl-topo.xml": nccl}, {"hwloc.xml": hwloc}):
        boards = read_machine(MemoryMachine(files), 1).boards
        assert [board.vendor for board in boards] == [vendor]
