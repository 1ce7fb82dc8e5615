"""Processors: lists and masks, control groups, affinity, odd cpuinfo, Python's own oracles."""

from __future__ import annotations

import math
import os
import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwdetect import detect
from hwdetect.assemble import read_machine
from hwdetect.machine.cpu_lists import format_cpu_list, parse_cpu_list, parse_cpu_mask
from hwdetect.machine.live import Live
from hwdetect.probes.cgroup import read_limits
from hwdetect.probes.cpu.microarchitecture import AMD_GENERATIONS, INTEL_WITH_TILES, find_cpuinfo_label
from hwdetect.probes.notes import Notes
from tests.hwdetect.memory_machine import MemoryMachine

CPU = "sys/devices/system/cpu"
DOCKER_V1 = (
    "7 5 0:6 /docker /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:7 - cgroup cgroup rw,cpu,cpuacct\n"
    "8 5 0:7 /docker /sys/fs/cgroup/memory rw,nosuid shared:8 - cgroup cgroup rw,memory\n"
    "8 5 0:7 /docker/memory.vmstat /sys/fs/cgroup/vmstat rw,nosuid shared:8 - cgroup cgroup rw,memory\n"
)


@given(st.frozensets(st.integers(0, 5000), max_size=60))
def test_lists_come_back(cpus):
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


@given(st.frozensets(st.integers(0, 2000), max_size=60))
def test_masks_come_back(cpus):
    bits = sum(1 << cpu for cpu in cpus)
    words = [f"{bits >> 32 * i & 0xFFFFFFFF:08x}" for i in range(max(1, -(-bits.bit_length() // 32)))]
    assert parse_cpu_mask(",".join(reversed(words))) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3\n\0".replace("\0", ""), {0, 1, 2, 3}),
        ("0,\n 2", {0, 2}),
        ("", set()),
        ("24-31,40-41", {*range(24, 32), 40, 41}),
        ("0-7:2/4", {0, 1, 4, 5}),
    ],
)
def test_lists_as_kernels_write_them(text, cpus):
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["x", "3-1", "0-999999999", "١", "1-", None])
def test_what_is_no_list_is_none(text):
    assert parse_cpu_list(text) is None


def machine(quota, *, online="0-7", allowed="0-7", **files):
    return MemoryMachine(
        {f"{CPU}/online": online, "proc/self/status": f"Cpus_allowed_list:\t{allowed}\n", **quota, **files}
    )


def v2(*chain: str, group="/a/b") -> dict[str, str]:
    """cpu.max of the group, its parent and the root, nearest first."""
    folders = ("sys/fs/cgroup/a/b", "sys/fs/cgroup/a", "sys/fs/cgroup")
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": "34 33 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n34 33 0:29 / /sys/fs/foo rw - foo cgroup rw\n",
        **{f"{folder}/cpu.max": text for folder, text in zip(folders, chain, strict=False)},
    }


@pytest.mark.parametrize(
    ("files", "allowed", "quota", "budget"),
    [
        (v2("max 100000", "200000 100000", "max 100000"), "0-7", 2.0, 2),
        (v2("400000 100000", "150000 100000"), "0-7", 1.5, 2),
        (v2("100000 100000", "400000 100000"), "0-7", 1.0, 1),
        (v2("max"), "0-7", None, 8),
        (v2("600000 100000"), "0-3", 6.0, 4),
        (v2("50000"), "0-7", 0.5, 1),
        (v2("-1 100000"), "0-7", None, 8),
    ],
)
def test_the_tightest_quota_of_the_chain(files, allowed, quota, budget):
    cpu = read_machine(machine(files, allowed=allowed), 1).cpu
    assert (cpu.quota, cpu.budget) == (quota, budget)
    assert cpu.budget == min(cpu.cpus_allowed, math.ceil(quota) if quota else 99)


ONE_V2_TREE = "7 5 0:6 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
V1_CPUSET = "7 5 0:6 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"


@pytest.mark.parametrize(
    ("files", "allowed", "quota", "budget", "limit"),
    [
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n", "proc/self/cgroup": "0::/\n"}, 16, 2.5, 3, None),
        (
            {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "800000 200000", "proc/self/cgroup": "0::/a/b\n",
             "sys/fs/cgroup/cpu.max": "max"},
            16, 4.0, 4, None,
        ),
        (
            {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "150000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
             "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824", "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/y\n"},
            16, 1.5, 2, 1 << 30,
        ),
        ({"proc/self/status": "Cpus_allowed:\t000f\n"}, 4, None, 4, None),
        ({"proc/self/status": "Cpus_allowed:\tffff\nCpus_allowed_list:\t0-3,8,10-11\n"}, 7, None, 7, None),
        (
            {"proc/self/cgroup": "5:cpuset:/k/p\n", "proc/self/mountinfo": V1_CPUSET, "sys/fs/cgroup/cpuset/k/p/cpuset.cpus": "2-3,9\n"},
            3, None, 3, None,
        ),
        (
            {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": ONE_V2_TREE, "sys/fs/cgroup/cpuset.cpus.effective": "12-19\n",
             "sys/fs/cgroup/cpu.max": "max 100000"},
            4, None, 4, None,
        ),
        (
            {"proc/self/cgroup": "0::/../../kubepods/x\n", "sys/fs/cgroup/cpu.max": "50000 100000", "sys/fs/cgroup/memory.max": "max",
             "proc/self/mountinfo": "7 5 0:6 /kubepods/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
            16, 0.5, 1, None,
        ),
        (
            {"proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n", "sys/fs/cgroup/memory.max": "8589934592",
             "sys/fs/cgroup/cpu.max": "6400000 100000"},
            16, 64.0, 16, 8 << 30,
        ),
    ],
    ids=["v2 without mounts", "nested v2", "v1 in the usual places", "mask", "ranges", "v1 cpuset", "offline CPUs in a cpuset",
         "pod", "no group mount in the table"],
)  # fmt: skip
def test_shapes_of_control_groups(files, allowed, quota, budget, limit):
    hardware = read_machine(machine({}, online="0-15", allowed="0-15", **files), 1)
    cpu = hardware.cpu
    assert (cpu.cpus_online, cpu.cpus_allowed, cpu.quota, cpu.budget) == (16, allowed, quota, budget)
    assert hardware.memory.limit_bytes == limit


def test_a_v1_mount_whose_root_is_the_containers_parent():
    files = {
        "proc/self/mountinfo": DOCKER_V1,
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu,cpuacct/abc/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/abc/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/abc/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/abc/memory.stat": "cache 0\nhierarchical_memory_limit 4294967296\n",
    }
    limits = read_limits(machine(files), Notes())
    assert limits.quota_cpus == 3.0 and limits.memory_bytes == 4 << 30


def test_hybrid_has_quota_in_v1_and_memory_in_v2():
    files = {
        "proc/self/mountinfo": "7 5 0:6 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n9 5 0:8 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n",
        "proc/self/cgroup": "3:cpu:/x\n0::/y\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/unified/y/memory.max": "1073741824\n",
    }
    limits = read_limits(machine(files), Notes())
    assert (limits.quota_cpus, limits.memory_bytes) == (2.0, 1 << 30)


def test_a_group_that_this_namespace_does_not_show_is_the_mount_itself():
    files = v2(group="/../../outer")
    files["sys/fs/cgroup/cpu.max"] = "100000 100000"
    assert read_limits(machine(files), Notes()).quota_cpus == 1.0


def test_a_cpuset_takes_cpus_away():
    files = v2() | {"sys/fs/cgroup/a/cpuset.cpus.effective": "2-3\n"}
    cpu = read_machine(machine(files), 1).cpu
    assert (cpu.cpus_online, cpu.cpus_allowed, cpu.budget) == (8, 2, 2)


def test_more_than_a_thousand_cpus_with_gaps():
    cpu = read_machine(machine({}, online="8-1031", allowed="8-1031"), 1).cpu
    assert (cpu.cpus_online, cpu.cpus_allowed, cpu.budget) == (1024, 1024, 1024)


def test_sme_of_x86_is_no_matrix_extension():
    text = "processor: 0\nvendor_id: AuthenticAMD\nflags: lm sme avx2\n"
    assert read_machine(MemoryMachine({"proc/cpuinfo": text}), 1).cpu.isa_features == ("avx2",)


def test_a_feature_counts_only_if_every_cpu_has_it():
    text = "processor: 0\nvendor_id: G\nflags: lm avx2 avx512f\n\nprocessor: 1\nvendor_id: G\nflags: lm avx2\n"
    assert read_machine(MemoryMachine({"proc/cpuinfo": text}), 1).cpu.isa_features == ("avx2",)


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/cpuinfo")
def test_the_label_is_archspecs_own_on_this_machine():
    import archspec.cpu

    from hwdetect.probes.cpu.cpuinfo import read_cpuinfo

    known = {
        archspec.cpu.host().name,
        *AMD_GENERATIONS.values(),
        INTEL_WITH_TILES,
    }  # the last where a hypervisor hides what they are known by
    assert find_cpuinfo_label(read_cpuinfo(Live()).first, platform.machine()) in known


def test_an_intel_with_tiles_in_a_virtual_machine_is_no_ice_lake():
    """One that hides "waitpkg" was taken for an Ice Lake; one without tiles is what archspec says."""
    from archspec.cpu.microarchitecture import TARGETS

    flags = TARGETS["sapphirerapids"].features - {"waitpkg"}
    block = {"vendor_id": "GenuineIntel", "cpu family": "6"}
    assert find_cpuinfo_label(block | {"flags": " ".join(sorted(flags))}, "x86_64") == "sapphirerapids"
    plain = " ".join(sorted(flag for flag in flags if not flag.startswith("amx")))
    assert find_cpuinfo_label(block | {"flags": plain}, "x86_64") == "icelake"


@pytest.mark.parametrize(("family", "label"), [("25", "zen4"), ("26", "zen5"), ("27", "x86_64_v4")])
def test_an_amd_whose_features_a_hypervisor_hides_is_known_by_its_family(family, label):
    """As Firecracker shows a Zen 4 (EPYC, model 17): archspec asks for pku and flush_l1d, and its bf16 was priced as Zen 5's, 1.9 times
    what it is."""
    from archspec.cpu.microarchitecture import TARGETS

    flags = " ".join(sorted(TARGETS["zen4"].features - {"pku", "flush_l1d"}))
    assert find_cpuinfo_label({"vendor_id": "AuthenticAMD", "cpu family": family, "flags": flags}, "x86_64") == label


def test_an_amd_without_avx512_is_not_named_by_its_family():
    from archspec.cpu.microarchitecture import TARGETS

    flags = " ".join(sorted(TARGETS["zen3"].features - {"pku"}))
    found = find_cpuinfo_label({"vendor_id": "AuthenticAMD", "cpu family": "25", "flags": flags}, "x86_64")
    assert found not in AMD_GENERATIONS.values()


def test_live_counts_are_the_systems():
    cpu = detect().cpu
    assert cpu.cpus_online == os.cpu_count()
    assert cpu.cpus_allowed == len(os.sched_getaffinity(0))
    assert cpu.budget <= cpu.cpus_allowed


def test_a_narrower_affinity_is_seen(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert detect().cpu.cpus_allowed == 1


def test_a_machine_without_proc_and_sys_still_answers(monkeypatch, tmp_path):
    class Bare(Live):
        def _path(self, path):
            return str(tmp_path / path)

    hardware = read_machine(Bare(2.0), 2.0)
    assert hardware.cpu.budget and hardware.memory.total_bytes


def test_amx_that_the_kernel_refuses_is_not_claimed():
    class Refusing(MemoryMachine):
        def is_amx_permitted(self):
            return False

    text = "processor: 0\nvendor_id: GenuineIntel\nflags: lm avx2 amx_tile amx_bf16\n"
    hardware = read_machine(Refusing({"proc/cpuinfo": text}), 1)
    assert hardware.cpu.isa_features == ("avx2",) and any(n.who == "arch_prctl" for n in hardware.notes)
    assert "amx_bf16" in read_machine(MemoryMachine({"proc/cpuinfo": text}), 1).cpu.isa_features


@pytest.mark.parametrize("brand", ["Apple M1 Max", "Apple M2", "Apple M9 Ultra"])
def test_rosetta_does_not_make_a_mac_an_x86(brand):
    text = f"hw.ncpu: 8\nhw.memsize: 17179869184\nmachdep.cpu.brand_string: {brand}\nhw.optional.arm64: 1\nhw.optional.x86_64: 0\n"
    hardware = read_machine(MemoryMachine({"sysctl.txt": text}), 1)
    assert hardware.cpu.architecture == "aarch64" and hardware.boards[0].unified_memory is True
    assert hardware.accelerators[0].memory_bytes is None


def test_files_that_may_not_be_read(monkeypatch):
    """As root every mode can be read: the kernel's refusal is staged."""

    def refuse(path, *rest, **more):
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("open", "listdir", "readlink"):
        monkeypatch.setattr(os, name, refuse)
    hardware = read_machine(Live(2.0), 2.0)
    monkeypatch.undo()
    assert hardware.cpu.budget and hardware.notes


def test_a_home_that_cannot_be_written_is_told_and_not_touched(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    hardware = detect()
    assert {disk.writable for disk in hardware.disks} == {False} and not (tmp_path / "home").exists()


@pytest.mark.parametrize("home", ["/nonexistent/home", "", "relative", "/proc/self/fd", "\x01"])
def test_homes_of_all_kinds(home, monkeypatch):
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("TMPDIR", home)
    assert detect().cpu.budget
