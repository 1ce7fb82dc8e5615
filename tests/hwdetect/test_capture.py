"""Capture and replay, the JSON form and its schema, tools that hang, and time."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

import hwdetect
from hwdetect import capture, detect, findings, from_json, to_json, view
from hwdetect.assemble import read_machine
from hwdetect.jsonio import build_schema, format_schema
from hwdetect.machine.live import Live
from hwdetect.machine.process import run_command
from hwdetect.machine.recorded import Recorded
from hwdetect.recording import write
from hwdetect.recording.redact import Redactor, strip_private
from hwdetect.recording.write import Tee, _write_tree
from tests.hwdetect.test_nvml import FakeNvml, boards


def volatile_hidden(mapping):
    """Without what changes between two moments: free memory and free disk."""
    text = json.loads(json.dumps(mapping))
    text["memory"]["available_bytes"] = text["memory"]["swap_used_bytes"] = None
    for disk in text["disks"]:
        disk["free_bytes"] = None
    for one in (*text["boards"], *text["accelerators"]):
        one["uuid"] = one["uuid"] and one["uuid"][:4]  # a capture has stand-ins for ids of boards
    return text


def test_a_capture_replays_to_the_same_machine(tmp_path):
    before = detect()
    capture(tmp_path / "c")
    assert volatile_hidden(to_json(detect(tmp_path / "c"))) == volatile_hidden(to_json(before))


def test_a_replay_does_not_look_at_the_machine_it_runs_on(tmp_path, monkeypatch):
    capture(tmp_path / "c")
    first = detect(tmp_path / "c")
    for name in (
        "read_bytes",
        "list_folder",
        "get_variable",
        "get_affinity",
        "get_space",
        "list_packages",
        "find_nvml",
        "run",
    ):
        monkeypatch.setattr(Live, name, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 77)
    assert detect(tmp_path / "c") == first


def test_a_capture_with_boards_replays_to_the_same(tmp_path, monkeypatch):
    fake = FakeNvml(boards=boards(4, nvlinks=18))
    monkeypatch.setattr(Live, "find_nvml", lambda self: fake)
    before = detect()
    capture(tmp_path / "c")
    after = detect(tmp_path / "c")
    assert len(after.boards) == 4 and len(after.links) == 6
    assert volatile_hidden(to_json(after)) == volatile_hidden(to_json(before))


def test_a_capture_holds_no_private_word(tmp_path, monkeypatch):
    import getpass
    import socket

    monkeypatch.setattr(socket, "gethostname", lambda: "node17.secret.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "aliceb")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aliceb").mkdir()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "aliceb"))
    capture(tmp_path / "c")
    everything = "\n".join(str(p) + p.read_text() for p in (tmp_path / "c").rglob("*") if p.is_file())
    assert "aliceb" not in everything and "secret.example" not in everything
    capture(tmp_path / "d", private=True)
    assert "aliceb" in (tmp_path / "d/machine.json").read_text()


def test_words_and_addresses_are_replaced_alike():
    redactor = Redactor({"node17": "host"})
    assert redactor.words("/torque/5.node17/x node17a") == "/torque/5.host/x node17a"
    assert redactor.addresses("a 10.1.2.3 b 6.18.44 c 52:54:00:12:34:56 enx525400123456") == (
        "a 0.0.0.0 b 6.18.44 c 00:00:00:00:00:00 enx000000000000"
    )
    assert (
        redactor.addresses("fe80::5054:ff:fe12 2001:db8:1:2:3:4:5:6 0000:3b:00.0 12:30:05")
        == ":: :: 0000:3b:00.0 12:30:05"
    )


@pytest.mark.parametrize(
    ("path", "text", "gone"),
    [
        ("nvidia-smi.xml", "<gpu><serial>1654922007334</serial></gpu>", "1654922007334"),
        ("rocm-smi.json", '{"card0": {"Serial Number": "692024000810"}}', "692024000810"),
        ("proc/cpuinfo", "Hardware: x\nSerial\t\t: 363581cc0b5f00ec\n", "363581cc"),
        ("nvidia-smi-q.txt", "    Serial Number      : 1654922007334\n", "1654922007334"),
        ("sysctl.txt", "kern.hostname: mac.example\nhw.ncpu: 8\n", "mac.example"),
        ("proc/self/mountinfo", "1 0 0:1 / /home/alice rw - nfs4 server.example:/home rw\n", "alice"),
    ],
)
def test_serial_numbers_do_not_get_into_a_recording(path, text, gone):
    assert gone not in (strip_private(path, text) or "")


def test_capture_refuses_a_folder_that_is_in_use(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="not an empty folder"):
        capture(tmp_path)


def test_links_do_not_lead_out_of_a_recording(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").symlink_to("/proc/meminfo")
    (tmp_path / "proc/cpuinfo").symlink_to("../../../../../../../../proc/cpuinfo")
    (tmp_path / "real").write_text("6.1\n")
    (tmp_path / "proc/version").symlink_to("/real")
    recorded = Recorded(tmp_path)
    assert recorded.read("proc/meminfo") is None and recorded.read("proc/cpuinfo") is None
    assert recorded.read("proc/version") == "6.1\n", "an absolute link means the recorded machine's root"


def test_json_comes_back():
    hardware = detect()
    text = json.dumps(to_json(hardware), allow_nan=False)
    assert from_json(json.loads(text)) == hardware


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"cpu": {"cores": "many"}}, "cpu.cores"),
        ({"boards": [{"index": 0}]}, "boards.0.vendor"),
        ({"links": 3}, "links"),
        ({"schema": 99}, "schema"),
        (
            {"findings": [{"id": "x", "severity": "loud", "what": "", "evidence": "", "action": ""}]},
            "findings.0.severity",
        ),
    ],
)
def test_bad_json_names_the_field(change, where):
    with pytest.raises(ValueError, match=where):
        from_json({**to_json(detect()), **change})


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_what_is_no_object_is_refused(value):
    with pytest.raises(ValueError, match="hardware"):
        from_json(value)


def test_the_published_schema_is_current():
    assert (Path(hwdetect.__file__).parent / "schema.json").read_text(encoding="utf-8") == format_schema()


def test_what_detect_prints_fits_the_schema():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(to_json(detect()), build_schema())


def tool(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    "script", ["sleep 60", "echo start; sleep 60", "(sleep 60) & exit 0", "trap '' TERM; sleep 60"]
)
def test_a_hanging_tool_costs_its_deadline_and_no_more(script, tmp_path, monkeypatch):
    tool(tmp_path, "slowtool", script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    started = time.monotonic()
    output = run_command(("slowtool",), 0.5)
    assert time.monotonic() - started < 2
    assert output.problem or output.code == 0


def test_tools_run_in_the_c_locale(tmp_path, monkeypatch):
    tool(tmp_path, "localetool", 'echo "$LC_ALL,$LANG"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    assert run_command(("localetool",), 5).text == "C,C\n"


def test_detect_ends_in_time_when_nvidia_smi_hangs(tmp_path, monkeypatch):
    tool(tmp_path, "nvidia-smi", "sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    started = time.monotonic()
    hardware = detect()
    assert time.monotonic() - started < 5
    assert hardware.cpu.budget and any("no answer" in note.why for note in hardware.notes)


def test_a_live_nvidia_smi_is_read_where_nvml_is_not(tmp_path, monkeypatch):
    xml = (
        "<nvidia_smi_log><driver_version>590</driver_version><gpu id='00000000:01:00.0'><product_name>NVIDIA H100 80GB HBM3"
        "</product_name><fb_memory_usage><total>81559 MiB</total><free>80000 MiB</free></fb_memory_usage></gpu></nvidia_smi_log>"
    )
    tool(tmp_path, "nvidia-smi", f'[ "$1$2" = "-q-x" ] && cat <<X\n{xml}\nX\n')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(Live, "find_nvml", lambda self: "none")
    hardware = detect()
    assert hardware.boards[0].memory_bytes == 81559 << 20 and hardware.accelerators[0].free_memory_bytes == 80000 << 20


def test_eight_threads_get_the_same_answer():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        answers = [volatile_hidden(to_json(h)) for h in pool.map(lambda _: detect(), range(8))]
    assert all(answer == answers[0] for answer in answers)


def test_detection_is_fast_here():
    detect()
    best = min(_seconds(detect) for _ in range(5))
    assert best < 0.2, f"{best:.3f} s"


def _seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_detection_imports_nothing_heavy():
    import subprocess
    import sys

    code = "import hwdetect, sys; hwdetect.detect(); print([m for m in ('torch','transformers','copier','pydantic','numpy') if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("color", [True, False])
def test_the_view_tells_boards_links_and_findings(color, tmp_path):
    class With(Recorded):
        def find_nvml(self):
            return FakeNvml(boards=boards(2, nvlinks=4, ecc_errors=3))

    hardware = read_machine(With(tmp_path), 4)
    from dataclasses import replace

    text = view.render(replace(hardware, findings=findings.find_problems(hardware)), color)
    assert "2× NVIDIA H100 80GB HBM3" in text and "NV4" in text and "uncorrectable memory errors" in text
    assert ("\x1b[" in text) is color


def test_a_probe_that_reads_on_after_its_deadline_does_not_disturb_the_writing(tmp_path):
    machine, done = Tee(1.0), threading.Event()
    machine.folders |= {f"sys/listed/{number}" for number in range(50)}

    def read_on() -> None:
        for number in range(3_000_000):
            machine.texts[f"sys/read/{number}"] = "x"
            if done.is_set():
                return

    late = threading.Thread(target=read_on)
    late.start()
    try:
        while len(machine.texts) < 50_000:
            time.sleep(0.0001)
        _write_tree(tmp_path, machine.copy_readings(), Redactor({}))
    finally:
        done.set()
        late.join()
    assert len(list((tmp_path / "sys/listed").iterdir())) == 50


@pytest.mark.parametrize("existed", [True, False])
def test_a_recording_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch, existed):
    """Half of one was left on a full disk, and the next try refused its folder."""
    dest = tmp_path / "recording"
    if existed:
        dest.mkdir()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write, "_write_status", fail)
    with pytest.raises(OSError, match="No space left"):
        write.write_recording(dest, private=False, progress=None)
    assert dest.exists() is existed and not (existed and any(dest.iterdir()))
