"""Every finding with a machine that has it and one that has not, its evidence, and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwdetect import findings
from hwdetect.types import (
    Accelerator,
    Board,
    Cpu,
    Disk,
    Hardware,
    Link,
    Memory,
    NetworkPort,
    Note,
    Pcie,
    PciPath,
    Software,
)

GIB = 1 << 30
BOARD = Board(
    index=0, vendor="nvidia", name="NVIDIA H100 80GB HBM3", device="h100-sxm-80gb", memory_bytes=80 * GIB, state="ok",
    mig_enabled=False, power_limit_watts=700, power_default_watts=700, temperature_c=40, throttle_reasons=(),
    ecc_enabled=True, ecc_errors=0, compute_mode="Default", nvlinks_active=18,
    pcie=Pcie(generation=5, generation_max=5, width=16, width_max=16),
)  # fmt: skip
FREE = Accelerator(index=0, board=0, memory_bytes=80 * GIB, free_memory_bytes=79 * GIB, compute_share=1.0)
HEALTHY = Hardware(
    cpu=Cpu(cpus_online=64, cpus_allowed=64, budget=64),
    memory=Memory(total_bytes=512 * GIB, shm_bytes=256 * GIB, swap_total_bytes=8 * GIB, swap_used_bytes=0),
    boards=(BOARD, replace(BOARD, index=1)),
    accelerators=(FREE, replace(FREE, index=1, board=1)),
    links=(Link(a=0, b=1, kind="nvlink", count=18, p2p=True),),
    network=(NetworkPort(name="mlx5_0/1", kind="infiniband", state="active"),),
    paths=(PciPath(board=0, port="mlx5_0/1", kind="pix"), PciPath(board=1, port="mlx5_0/1", kind="node")),
    disks=(Disk(role="work", path="/data", kind="nvme"),),
    software=Software(driver="590.48.01", torch="2.13.0", torch_build="cu130"),
)


def board(**changes) -> Hardware:
    return replace(HEALTHY, boards=(replace(BOARD, **changes), replace(BOARD, index=1)))


def part(name, **changes) -> Hardware:
    return replace(HEALTHY, **{name: replace(getattr(HEALTHY, name), **changes)})


def link(pcie: Pcie, **changes) -> Hardware:
    return board(pcie=pcie, **changes)


BUSY = Pcie(generation=4, generation_max=5, width=16, width_max=16)
IDLE = Pcie(generation=1, generation_max=5, width=16, width_max=16)
OTHER = replace(BOARD, index=1, name="NVIDIA L4", device="l4", memory_bytes=22 * GIB)
CASES = {
    "pcie-width": (link(Pcie(width=8, width_max=16)), link(Pcie(width=8, width_max=None)), "pcie.width 8"),
    "pcie-generation": (link(BUSY), link(IDLE, throttle_reasons=("gpu_idle",)), "generation 4"),
    "power-limit": (board(power_limit_watts=450), board(power_limit_watts=699), "450"),
    "thermal-throttling": (
        board(throttle_reasons=("hw_thermal_slowdown",), temperature_c=88),
        board(throttle_reasons=("sw_power_cap",)),
        "88 °C",
    ),
    "power-brake": (board(throttle_reasons=("hw_power_brake_slowdown",)), board(throttle_reasons=None), "power_brake"),
    "p2p-off": (
        replace(HEALTHY, links=(Link(a=0, b=1, kind="sys", p2p=False),)),
        replace(HEALTHY, links=(Link(a=0, b=1, kind="sys", p2p=None),)),
        "0-1",
    ),
    "nvlink-inactive": (board(nvlinks_active=0), board(nvlinks_active=None), "boards 0"),
    "gpu-nic-sockets": (
        replace(HEALTHY, paths=(PciPath(board=0, port="mlx5_0/1", kind="sys"),)),
        replace(HEALTHY, paths=(*HEALTHY.paths, PciPath(board=0, port="mlx5_0/1", kind="sys"))),
        "SYS",
    ),
    "port-down": (
        replace(HEALTHY, network=(NetworkPort(name="mlx5_9/1", kind="infiniband", state="down"),)),
        replace(HEALTHY, network=(NetworkPort(name="eth0", kind="ethernet", state="down"),)),
        "mlx5_9/1",
    ),
    "efa": (
        replace(HEALTHY, network=(NetworkPort(name="rdmap0s6", kind="efa", state="active"),)),
        replace(HEALTHY, network=()),
        "rdmap0s6",
    ),
    "driver-too-old": (
        part("software", driver="570.10"),
        part("software", torch_build="cu126", driver="570.1.2"),
        "580",
    ),
    "torch-cpu-build": (
        part("software", torch_build="cpu"),
        replace(part("software", torch_build="cpu"), boards=()),
        "",
    ),
    "cpu-quota": (part("cpu", quota=4.0, budget=4), part("cpu", quota=64.0), "quota 4"),
    "cpu-affinity": (part("cpu", cpus_allowed=8), part("cpu", cpus_allowed=None), "cpus_allowed 8"),
    "shm-small": (part("memory", shm_bytes=64 << 20), part("memory", shm_bytes=None), "67108864"),
    "memlock-small": (part("memory", lockable_bytes=8 << 20), part("memory", lockable_bytes=None), "8388608"),
    "open-files-few": (part("software", open_files=256), part("software", open_files=1 << 20), "open_files 256"),
    "swap-in-use": (part("memory", swap_used_bytes=8 * GIB), part("memory", swap_used_bytes=1 << 20), "8589934592"),
    "memory-limit": (part("memory", limit_bytes=8 * GIB), part("memory", limit_bytes=600 * GIB), "8589934592"),
    "no-nvme": (
        replace(HEALTHY, disks=(Disk(role="work", path="/data", kind="hdd"),)),
        replace(HEALTHY, disks=(Disk(role="work", path="/data", kind=None),)),
        "hdd",
    ),
    "network-disk": (
        replace(HEALTHY, disks=(Disk(role="work", path="/nfs", kind="network"),)),
        replace(HEALTHY, disks=(Disk(role="cache", path="/nfs", kind="network"),)),
        "/nfs",
    ),
    "mixed-gpus": (
        replace(HEALTHY, boards=(BOARD, OTHER)),
        replace(HEALTHY, boards=(BOARD, OTHER), accelerators=(FREE,)),
        "l4",
    ),
    "ecc-errors": (board(ecc_errors=2), board(ecc_errors=None), "2 since"),
    "memory-repair-pending": (board(repair_pending=True), board(repair_pending=False), "pending"),
    "driver-hangs": (
        replace(HEALTHY, notes=(Note(field="boards", who="NVML", why="no answer within 2.7 s: the driver hangs"),)),
        replace(HEALTHY, notes=(Note(field="cpu.quota", who="cgroup", why="is empty"),)),
        "NVML",
    ),
    "mig": (board(mig_enabled=True), board(mig_enabled=None), ""),
    "virtual-gpu": (board(virtualization="VGPU"), board(virtualization="Pass-Through"), "VGPU"),
    "memory-in-use": (
        replace(HEALTHY, accelerators=(replace(FREE, free_memory_bytes=20 * GIB),)),
        replace(HEALTHY, accelerators=(replace(FREE, free_memory_bytes=None),)),
        "20.0 GiB",
    ),
    "board-state": (board(state="lost"), board(state="corrupted-inforom"), "lost"),
    "board-health": (board(state="corrupted-inforom"), board(state="lost"), "corrupted-inforom"),
    "compute-mode": (board(compute_mode="Prohibited"), board(compute_mode=None), "Prohibited"),
}


def named(hardware: Hardware, name: str):
    return [finding for finding in findings.find_problems(hardware) if finding.id == name]


def test_a_healthy_machine_has_no_finding():
    assert findings.find_problems(HEALTHY) == ()
    assert findings.find_problems(Hardware()) == (), "what is not known is no fault"


@pytest.mark.parametrize("name", CASES)
def test_a_machine_that_has_it(name):
    problems = named(CASES[name][0], name)
    assert problems, findings.find_problems(CASES[name][0])
    assert CASES[name][2] in problems[0].evidence and problems[0].evidence and problems[0].action and problems[0].what


@pytest.mark.parametrize("name", CASES)
def test_a_machine_that_has_not(name):
    assert not named(CASES[name][1], name)


def test_every_id_that_the_rules_can_tell_is_tested():
    import re
    from pathlib import Path as File

    rule_ids = set(
        re.findall(r'_build_finding\(\s*"([a-z0-9-]+)"', File(findings.__file__).read_text(encoding="utf-8"))
    )
    assert rule_ids == set(CASES)


def test_a_link_that_is_slow_under_load_is_told_though_it_is_idle_now():
    slow = Pcie(generation=1, generation_max=4, generation_load=3)
    assert named(link(slow, throttle_reasons=("gpu_idle",)), "pcie-generation")
    assert not named(link(replace(slow, generation_load=4), throttle_reasons=("gpu_idle",)), "pcie-generation")


def test_mig_without_instances_is_an_error():
    hardware = replace(board(mig_enabled=True), accelerators=())
    assert named(hardware, "mig")[0].severity == "error"
    assert named(CASES["mig"][0], "mig")[0].severity == "info"


def test_the_worst_come_first():
    many = replace(board(state="lost", ecc_errors=1, power_limit_watts=300), disks=CASES["network-disk"][0].disks)
    order = [finding.severity for finding in findings.find_problems(many)]
    assert order == sorted(order, key=["error", "warning", "info"].index) and len(set(order)) == 3


@pytest.mark.parametrize(
    ("build", "driver", "old"),
    [
        ("cu130", "580.65.06", False), ("cu130", "580.65.05", True), ("cu128", "525.60.13", False),
        ("cu128", "520.61.05", True), ("cu118", "450.80.02", False), ("rocm6.4", "6.2", False), ("cpu", "1.0.0", False),
        ("cu130", "591.86", False), ("cu130", "551.23", True), (None, "1.0.0", False), ("cu990", "1.0.0", False),
    ],
)  # fmt: skip
def test_the_driver_that_a_build_needs(build, driver, old):
    assert bool(named(part("software", torch_build=build, driver=driver), "driver-too-old")) is old


def behind_sys(packages, nodes, of_board, of_port, port="mlx5_0") -> Hardware:
    """A machine with one board, whose only port it reaches across NUMA nodes; nvidia-smi names ports without their number."""
    return replace(
        HEALTHY,
        cpu=replace(HEALTHY.cpu, packages=packages, numa_nodes=nodes),
        boards=(replace(BOARD, numa_node=of_board),),
        accelerators=(FREE,),
        links=(),
        network=(replace(HEALTHY.network[0], numa_node=of_port),),
        paths=(PciPath(board=0, port=port, kind="sys"),),
    )


@pytest.mark.parametrize(
    ("machine", "far"),
    [
        (behind_sys(2, 2, 0, 1), True),
        (behind_sys(2, 2, None, None), True),  # a node is a socket: SYS says it
        (behind_sys(1, 4, 0, 3), False),
        (behind_sys(2, 8, 0, 3), False),  # four nodes a socket
        (behind_sys(2, 8, 0, 4), True),
        (behind_sys(2, 8, None, 4), False),
        (behind_sys(1, 1, 0, 0), False),
        (behind_sys(None, 4, 0, 1), False),  # a topology of NCCL: nobody counts the sockets
        (behind_sys(None, 4, 0, 2), True),
        (behind_sys(None, 2, 0, 1), True),
    ],
)
def test_numa_nodes_are_no_sockets(machine, far):
    assert ("gpu-nic-sockets" in {finding.id for finding in findings.find_problems(machine)}) == far


def test_one_finding_a_fault_names_all_its_boards():
    capped = [replace(BOARD, index=i, power_limit_watts=450) for i in range(8)]
    hardware = replace(
        HEALTHY, boards=tuple(capped), accelerators=tuple(replace(FREE, index=i, board=i) for i in range(8))
    )
    (problem,) = named(hardware, "power-limit")
    assert "GPUs 0, 1, 2, 3, 4, 5, 6, 7 (NVIDIA H100 80GB HBM3)" in problem.what


def test_boards_that_the_job_may_not_use_are_no_concern_of_it():
    hot = replace(BOARD, index=1, throttle_reasons=("hw_thermal_slowdown",))
    seen = replace(HEALTHY, boards=(BOARD, hot))
    hidden = replace(seen, accelerators=(FREE,), software=replace(HEALTHY.software, visible_devices="0"))
    assert named(seen, "thermal-throttling") and not named(hidden, "thermal-throttling")


@pytest.mark.parametrize(
    ("vendor", "tool"),
    [("nvidia", "nvidia-smi"), ("amd", "amd-smi process"), ("intel", "xpu-smi ps"), ("huawei", "npu-smi")],
)
def test_a_finding_names_the_tool_of_the_boards_maker(vendor, tool):
    busy = replace(FREE, free_memory_bytes=GIB)
    (problem,) = named(replace(HEALTHY, boards=(replace(BOARD, vendor=vendor),), accelerators=(busy,)), "memory-in-use")
    assert tool in problem.action


def test_who_rents_a_machine_is_not_told_to_open_it():
    narrow = board(pcie=Pcie(width=8, width_max=16))
    assert "move the card" in named(narrow, "pcie-width")[0].action
    rented = replace(narrow, software=replace(narrow.software, virtualization="kvm"))
    assert "move the card" not in named(rented, "pcie-width")[0].action


@pytest.mark.parametrize(
    ("vendor", "integrated", "told"), [("nvidia", None, "CUDA"), ("intel", None, "XPU"), ("intel", True, None), ("amd", None, None)]
)  # fmt: skip
def test_a_cpu_build_beside_a_board_of_any_maker(vendor, integrated, told):
    """It was told of NVIDIA's alone. ROCm's wheels leave boards out: beside one of them the CPU build is right."""
    machine = replace(
        part("software", torch_build="cpu"), boards=(replace(BOARD, vendor=vendor, integrated=integrated),)
    )
    problems = named(machine, "torch-cpu-build")
    assert [f"its {told} build" in problem.what for problem in problems] == [True] * bool(told)


def test_a_board_that_is_known_by_name_alone_is_no_other_board():
    """nvidia-smi's answer, cut off in the fourth of eight equal boards, was a machine whose accelerators are not equal."""
    named = replace(BOARD, name="NVIDIA H100 80GB HBM3", device="h100-sxm-80gb")
    cut_off = replace(named, index=1, device=None, memory_bytes=None)
    other = replace(cut_off, name="Tesla T4")
    parts = (FREE, replace(FREE, index=1, board=1))
    for second, warned in ((cut_off, False), (other, True)):
        machine = replace(HEALTHY, boards=(named, second), accelerators=parts)
        assert any(f.id == "mixed-gpus" for f in findings.find_problems(machine)) is warned
