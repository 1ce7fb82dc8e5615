"""machine.py of a project for a CPU: the memory that its control groups allow counts, not all that the machine has."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from leaves import load_leaf

GIB = 1 << 30
LEAF = Path(__file__).resolve().parents[2] / "templates" / "fragments" / "machine" / "cpu.py"
NO_LIMIT = "9223372036854771712"  # v1's word for none


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "smallest"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        (
            {
                "proc/self/cgroup": "0::/user/job\n",
                "sys/fs/cgroup/user/job/memory.max": "max\n",
                "sys/fs/cgroup/user/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
            },
            3 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            },
            GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{5 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{NO_LIMIT}\n",
            },
            5 * GIB,
        ),
        ({"proc/self/cgroup": "0::/../../kubepods/x\n", "sys/fs/cgroup/memory.max": f"{GIB}"}, GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "banana\n"}, None),
        ({"proc/self/cgroup": "1:name=systemd:/\n", "sys/fs/cgroup/memory.max": f"{GIB}"}, None),
        ({}, None),
    ],
    ids=[
        "v2",
        "above in the chain",
        "v1 in a container",
        "v1",
        "outside",
        "max",
        "no number",
        "another",
        "none at all",
    ],
)
def test_the_smallest_limit_of_the_chain(tmp_path, files, smallest):
    assert min(load_leaf("machine/cpu").list_memory_limits(lay_out(tmp_path, files)), default=None) == smallest


def test_a_small_group_stops_the_run(monkeypatch, capsys):
    leaf = load_leaf("machine/cpu")
    monkeypatch.setattr(leaf, "list_memory_limits", lambda: [GIB // 4])
    with pytest.raises(
        SystemExit, match=r"made for 0.3 GiB of memory, and of this machine's \d.* its control group allows 0\.2"
    ):
        leaf.check_machine({"needs_gib": 0.3, "cpus": 1})
    leaf.check_machine({"needs_gib": 0.2, "cpus": 1})
    monkeypatch.setattr(leaf, "list_memory_limits", lambda: [int(NO_LIMIT)])
    with pytest.raises(SystemExit, match="this machine has"):
        leaf.check_machine({"needs_gib": 1e6, "cpus": 1})


def test_processes_of_one_machine_need_as_much_each(monkeypatch, capsys):
    leaf = load_leaf("machine/cpu")
    monkeypatch.setattr(leaf, "list_memory_limits", lambda: [4 * GIB])
    monkeypatch.setattr(leaf.os, "cpu_count", lambda: 4)
    planned = {"needs_gib": 1.1, "cpus": 2}
    leaf.check_machine(planned)
    assert not capsys.readouterr().out
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    leaf.check_machine(planned)
    assert "Planned for 6 CPUs, this machine has 4" in capsys.readouterr().out
    monkeypatch.setenv("LOCAL_RANK", "1")
    leaf.check_machine(planned)
    assert not capsys.readouterr().out  # said once
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(SystemExit, match=r"made for 4\.4 GiB of memory"):
        leaf.check_machine(planned)


OWN = "/system.slice/job.scope"
QUOTAS = {
    "v2": ({"proc/self/cgroup": f"0::{OWN}\n", f"sys/fs/cgroup{OWN}/cpu.max": "150000 100000\n"}, 1),
    "v2, of the group above": (
        {
            "proc/self/cgroup": f"0::{OWN}\n",
            f"sys/fs/cgroup{OWN}/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
        },
        2,
    ),
    "v2, in a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
    "v1": (
        {
            "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/docker/a\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        3,
    ),
    "v1, no limit": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        64,
    ),
    "none": ({}, 64),
}


@pytest.mark.parametrize(("files", "cores"), QUOTAS.values(), ids=QUOTAS)
def test_data_are_prepared_by_as_many_processes_as_the_container_has_time_for(
    tmp_path, load, monkeypatch, files, cores
):
    leaf = load("parts")
    monkeypatch.setattr(leaf.os, "sched_getaffinity", lambda process: set(range(64)))
    assert leaf.count_cores(lay_out(tmp_path, files)) == cores


def test_data_are_prepared_by_one_process_on_macos(load, monkeypatch):
    """A fork of a process with Metal's or Accelerate's threads may hang or end there (Python's page about multiprocessing)."""
    leaf = load("parts")
    monkeypatch.setattr(leaf.sys, "platform", "darwin")
    monkeypatch.setattr(leaf.os, "cpu_count", lambda: 16)
    assert leaf.count_cores() == 1


COUNTED = """
import ctypes, importlib.util, resource, sys
spec = importlib.util.spec_from_file_location("machine", sys.argv[1])
machine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(machine)
if sys.argv[2] == "kept":
    machine.keep_freed_memory({"needs_gib": 0.25})
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def touch(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
touch(64 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    touch(64 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc")
def test_freed_memory_is_used_again():
    """Pages that the kernel had to clear while 64 MiB were written three times: none, where they are kept."""

    def count_faults(how: str) -> int:
        command = [sys.executable, "-c", COUNTED, str(LEAF), how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert count_faults("given back") > 3 * (64 << 20) // (2 << 20) > 10 > count_faults("kept")
