"""What bounds a process: control groups whose files make no sense, locked memory, open files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwdetect import checks, findings
from hwdetect.assemble import read_machine
from hwdetect.spec import parse_spec
from hwdetect.types import NetworkPort
from tests.hwdetect.memory_machine import MemoryMachine

V2 = {
    "proc/self/cgroup": "0::/a\n",
    "proc/self/mountinfo": "7 5 0:6 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
    "proc/meminfo": "MemTotal: 16777216 kB\n",
    "sys/devices/system/cpu/online": "0-7\n",
}
V1 = V2 | {
    "proc/self/cgroup": "3:cpu:/a\n2:memory:/a\n",
    "proc/self/mountinfo": "7 5 0:6 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "8 5 0:6 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
}
QUOTA, MEMORY = "sys/fs/cgroup/a/cpu.max", "sys/fs/cgroup/a/memory.max"
QUOTA_V1, PERIOD_V1 = "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us"
MEMORY_V1 = "sys/fs/cgroup/memory/a/memory.limit_in_bytes"


def read(files: dict[str, str]):
    return read_machine(MemoryMachine(files), 4.0)


def list_cgroup_notes(files: dict[str, str]) -> dict[str, str]:
    return {note.field: note.why for note in read(files).notes if note.who == "cgroup"}


@pytest.mark.parametrize(
    ("files", "field", "told"),
    [
        (V2 | {QUOTA: "banana 100000\n"}, "cpu.quota", f"{QUOTA} holds 'banana 100000'"),
        (V2 | {QUOTA: "200000 0\n"}, "cpu.quota", "'200000 0'"),
        (V2 | {QUOTA: "0 100000\n"}, "cpu.quota", "'0 100000'"),
        (V2 | {QUOTA: "200000 x\n"}, "cpu.quota", "'200000 x'"),
        (V2 | {QUOTA: "\n"}, "cpu.quota", "is empty"),
        (V2 | {MEMORY: "8G\n"}, "memory.limit_bytes", f"{MEMORY} holds '8G'"),
        (V2 | {MEMORY: "0\n"}, "memory.limit_bytes", "'0'"),
        (V2 | {MEMORY: "9" * 4000}, "memory.limit_bytes", "999"),
        (V1 | {QUOTA_V1: "-7\n", PERIOD_V1: "100000\n"}, "cpu.quota", "'-7 of 100000'"),
        (V1 | {QUOTA_V1: "200000\n", PERIOD_V1: "0\n"}, "cpu.quota", "'200000 of 0'"),
        (V1 | {MEMORY_V1: "lots\n"}, "memory.limit_bytes", "'lots'"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_a_limit_that_is_none_is_noted(files, field, told):
    notes = list_cgroup_notes(files)
    assert set(notes) == {field} and told in notes[field] and len(notes[field]) < 301
    machine = read(files)
    assert machine.cpu.quota is None and machine.memory.limit_bytes is None


@pytest.mark.parametrize(
    "files",
    [
        V2 | {QUOTA: "max 100000\n", MEMORY: "max\n"},
        V2 | {QUOTA: "max\n"},
        V2 | {QUOTA: "150000 100000\n", MEMORY: "1073741824\n"},
        V1 | {QUOTA_V1: "-1\n", PERIOD_V1: "100000\n", MEMORY_V1: "9223372036854771712\n"},
        V1 | {QUOTA_V1: "50000\n", PERIOD_V1: "100000\n", MEMORY_V1: "-1\n"},
        V2,
    ],
)
def test_a_sound_limit_is_no_news(files):
    assert list_cgroup_notes(files) == {}


ROW = "Limit                     Soft Limit           Hard Limit           Units     \n"


def write_limits(locked: str, files: str) -> dict[str, str]:
    return {
        "proc/self/limits": f"{ROW}Max open files            {files}  files\nMax locked memory         {locked}  bytes\n"
    }


def test_limits_of_the_process_are_read():
    machine = read(V2 | write_limits("8388608   16777216", "1024    524288"))
    assert (machine.memory.lockable_bytes, machine.software.open_files) == (8 << 20, 1024)
    assert machine.software.open_files_most == 524288
    machine = read(V2 | write_limits("unlimited unlimited", "unlimited unlimited"))
    assert machine.memory.lockable_bytes is None and machine.software.open_files is None


def test_who_may_lock_all_has_no_limit():
    status = {"proc/self/status": "CapEff:\t0000003fffffffff\n"}
    assert read(V2 | write_limits("65536 65536", "1024 1024") | status).memory.lockable_bytes is None
    status = {"proc/self/status": "CapEff:\t0000000000000000\n"}
    assert read(V2 | write_limits("65536 65536", "1024 1024") | status).memory.lockable_bytes == 65536


def test_rows_that_make_no_sense_are_noted():
    machine = read(V2 | write_limits("many more", "1_0 ٣"))
    told = {note.field: note.why for note in machine.notes if note.who == "procfs"}
    assert "'Max locked memory'" in told["memory.lockable_bytes"] and "'Max open files'" in told["software.open_files"]


def list_ids(**changes) -> dict[str, str]:
    machine = parse_spec("8xh100-sxm-80gb:128")
    memory = replace(machine.memory, lockable_bytes=changes.pop("lockable_bytes", None))
    machine = replace(machine, memory=memory, network=changes.pop("network", ()))
    machine = replace(machine, software=replace(machine.software, **changes))
    return {finding.id: finding.severity for finding in findings.find_problems(machine)}


def test_little_lockable_memory_matters_where_there_is_rdma():
    port = NetworkPort(name="mlx5_0", kind="infiniband", state="active")
    assert list_ids(lockable_bytes=8 << 20, network=(port,))["memlock-small"] == "warning"
    for quiet in ({"lockable_bytes": 8 << 20}, {"network": (port,)}, {"lockable_bytes": 64 << 30, "network": (port,)}):
        assert "memlock-small" not in list_ids(**quiet)


def test_few_open_files_matter_by_the_workers():
    assert list_ids(open_files=256, open_files_most=4096)["open-files-few"] == "warning"
    assert list_ids(open_files=1024, open_files_most=524288)["open-files-few"] == "info"
    assert "open-files-few" not in list_ids(open_files=65536) and "open-files-few" not in list_ids()


@given(st.text(max_size=30) | st.integers(-(2**70), 2**70).map(str), st.sampled_from([V1, V2]))
def test_whatever_stands_in_a_limit_is_a_limit_or_a_note(text, base):
    files = base | {QUOTA: text, MEMORY: text, QUOTA_V1: text, PERIOD_V1: text, MEMORY_V1: text}
    files |= write_limits(text, text)
    machine = read(files)
    assert list(checks.find_faults(machine)) == []
    assert machine.cpu.quota is None or machine.cpu.quota > 0
    assert machine.memory.limit_bytes is None or machine.memory.limit_bytes > 0
