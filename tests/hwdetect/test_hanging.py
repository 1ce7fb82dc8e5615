"""Tools and libraries that hang, flood or crash: they cost their own deadline, are named, and take nothing along."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hwdetect import detect
from hwdetect.machine.live import Live
from hwdetect.machine.process import MAX_OUTPUT_BYTES, run_command
from hwdetect.probes.nvidia.nvml_messages import MARK, NvmlMessage, decode_last_message, encode_message
from hwdetect.probes.nvidia.read import read_in_child
from hwdetect.types import Board

TOOLS = ("nvidia-smi", "rocm-smi", "amd-smi", "xpu-smi", "lspci", "ibstat", "tpu-info", "hl-smi", "neuron-ls", "npu-smi",
         "sysctl", "vm_stat", "system_profiler")  # fmt: skip
SMI = (
    "<nvidia_smi_log><driver_version>590</driver_version><gpu id='00000000:01:00.0'><product_name>NVIDIA L4</product_name>"
    "<fb_memory_usage><total>23034 MiB</total><free>22000 MiB</free></fb_memory_usage></gpu></nvidia_smi_log>"
)
REPOSITORY = Path(__file__).resolve().parents[2]


def tool(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(Live, "find_nvml", lambda self: "none")
    # a machine whose PCI tree says nothing: then every maker's tool is asked
    monkeypatch.setattr("hwdetect.probes.pci.is_readable", lambda machine: False)
    return tmp_path


@pytest.mark.parametrize("script", ["trap '' TERM INT HUP PIPE; sleep 60", "echo start; sleep 60", "(sleep 60) & wait"])
def test_every_tool_hangs_at_once(script, path):
    for name in TOOLS:
        tool(path, name, script)
    started = time.monotonic()
    hardware = detect()
    assert time.monotonic() - started < 5
    assert hardware.cpu.budget and not hardware.boards
    named = {note.who.split()[0] for note in hardware.notes if "no answer" in note.why}
    assert {"nvidia-smi", "amd-smi", "rocm-smi", "xpu-smi"} <= named


def test_every_tool_floods(path):
    for name in TOOLS:
        tool(path, name, "trap '' TERM PIPE; while :; do head -c 65536 /dev/zero | tr '\\0' 'x' || :; done")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    hardware = detect()
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB: nothing of it is kept"
    assert any("of output" in note.why or "no answer" in note.why for note in hardware.notes)


def test_output_up_to_the_limit_is_read_whole(path):
    tool(path, "talkative", f"head -c {MAX_OUTPUT_BYTES} /dev/zero | tr '\\0' 'x'")
    assert len(run_command(("talkative",), 5).text) == MAX_OUTPUT_BYTES
    tool(path, "talkative", f"head -c {MAX_OUTPUT_BYTES + 1} /dev/zero | tr '\\0' 'x'")
    assert run_command(("talkative",), 5).text is None


def test_what_was_read_before_a_later_command_hangs_is_kept(path):
    tool(path, "nvidia-smi", f'[ "$1$2" = "-q-x" ] && echo "{SMI}" && exit 0\nsleep 60')
    started = time.monotonic()
    hardware = detect()
    assert time.monotonic() - started < 5
    assert hardware.boards[0].device == "l4" and hardware.accelerators[0].free_memory_bytes == 22000 << 20
    named = {note.who for note in hardware.notes if "no answer" in note.why}
    assert any("topo" in who for who in named) and any("query-gpu" in who for who in named)


@pytest.mark.parametrize(
    "printed",
    [
        "Segmentation fault",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "{}",
        "[]",
        "",
    ],
)
def test_tools_that_fail(printed, path):
    for name in TOOLS:
        tool(path, name, f"echo '{printed}'; exit 9")
    assert not detect().boards


def whole_process(environment) -> tuple[float, dict]:
    """Seconds and the JSON of ``perfgen detect``, as a user runs it."""
    code = "import json, hwdetect; print(json.dumps(hwdetect.to_json(hwdetect.detect())))"
    started = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20,
                         cwd=REPOSITORY, env={**os.environ, **environment})  # fmt: skip
    return time.monotonic() - started, json.loads(run.stdout)


@pytest.mark.skipif(not shutil.which("cc"), reason="makes a library with the C compiler")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("int nvmlInitWithFlags(unsigned f) { for (;;) sleep(60); }", "no answer"),
        ("__attribute__((constructor)) void start(void) { sleep(60); }", "no answer"),
        ("int nvmlInitWithFlags(unsigned f) { abort(); }", "crashed"),
        ("int nvmlInitWithFlags(unsigned f) { exit(3); }", "ended early"),
        ('int nvmlInitWithFlags(unsigned f) { printf("noise\\n"); return 9; }', "code 9"),
        ("int other(void) { return 0; }", "code 13"),
    ],
    ids=["hangs", "hangs when loaded", "crashes", "exits", "prints and refuses", "has no such call"],
)
def test_a_library_that_does_not_behave(source, why, tmp_path):
    (tmp_path / "fake.c").write_text(f"#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n{source}\n")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "fake.c"], check=True)
    seconds, hardware = whole_process({"LD_LIBRARY_PATH": str(tmp_path), "PATH": os.environ["PATH"]})
    assert seconds < 5 and hardware["cpu"]["budget"]
    assert any(why in note["why"] for note in hardware["notes"] if note["field"] == "boards"), hardware["notes"]


FAKE_MODULE = """
import sys, time
sys.path.insert(0, {repository!r})
from tests.hwdetect.fake_nvml import FakeBoard, FakeNvml, NVMLError
fake = FakeNvml(boards=[FakeBoard(uuid=f"GPU-{{i}}", bus=16 + i) for i in range(3)], hangs={hangs!r})
def __getattr__(name):
    return getattr(fake, name)
"""


@pytest.mark.parametrize(("hangs", "boards"), [(None, 3), ("nvmlDeviceGetNvLinkState", 3), ("nvmlInit", 0)])
def test_boards_come_through_the_child_process(hangs, boards, tmp_path):
    (tmp_path / "pynvml.py").write_text(FAKE_MODULE.format(repository=str(REPOSITORY), hangs=hangs))
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    seconds, hardware = whole_process({"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)})
    assert seconds < 5 and len(hardware["boards"]) == len(hardware["accelerators"]) == boards
    assert any("no answer" in note["why"] for note in hardware["notes"]) is bool(hangs)
    assert bool(hardware["links"]) is (hangs is None)


def test_lines_cut_off_and_noise_are_passed_over():
    message = NvmlMessage(boards=[Board(index=0, vendor="nvidia")])
    line = encode_message(message)
    assert decode_last_message(b"noise\n" + line + line[:-20]).boards == message.boards
    assert decode_last_message(b"").boards == [] and decode_last_message(MARK + b"!!\n").boards == []


def test_the_child_is_killed_with_the_deadline():
    started = time.monotonic()
    message = read_in_child(0.01)
    assert time.monotonic() - started < 2 and message.problem
