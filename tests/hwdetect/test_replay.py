"""A capture of every kind of machine replays to the same: machines staged live from the recordings of others."""

from __future__ import annotations

import json

import pytest

from hwdetect import capture, detect, to_json
from hwdetect.machine.live import Live
from hwdetect.machine.recorded import Recorded
from tests.hwdetect.conftest import index_rows

WHOLE = "linux-sysroot"
# What a Linux machine can be staged from; of the whole file systems (hundreds of files each) every fourth, for time.
KINDS = (
    "nvidia-smi-xml",
    "nvidia-smi-capture",
    "rocm-smi-json",
    "amd-kfd-sysfs",
    "linux-sysfs subset",
    "cgroup-mountinfo",
)
ROWS = [r for r in index_rows() if r["kind"] in KINDS] + [r for r in index_rows() if r["kind"] == WHOLE][::4]


def answering(method):
    return lambda self, *arguments: method(*arguments)


def stage(monkeypatch, folder) -> None:
    """Makes every ``Live`` machine read that folder and its tools' outputs."""
    recorded = Recorded(folder)
    for name in ("run", "get_variable", "get_affinity", "get_architecture", "_path", "_real_root"):
        monkeypatch.setattr(Live, name, answering(getattr(recorded, name)))
    monkeypatch.setattr(Live, "find_nvml", lambda self: "not here")


def without_ids(mapping):
    """Ids of boards are replaced in a capture, and free disk space changes between two moments."""
    text = json.loads(json.dumps(mapping))
    for one in (*text["boards"], *text["accelerators"]):
        one["uuid"] = one["uuid"] and one["uuid"][:4]
    for disk in text["disks"]:
        disk["free_bytes"] = None
    return text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_staged_machine_replays_to_the_same(row, recordings, tmp_path, monkeypatch):
    stage(monkeypatch, recordings(row["id"]))
    before = detect()
    capture(tmp_path / "c")
    assert without_ids(to_json(detect(tmp_path / "c"))) == without_ids(to_json(before))


SMI = """<nvidia_smi_log><driver_version>590</driver_version><gpu id="00000000:01:00.0">
<product_name>NVIDIA H100 80GB HBM3</product_name><serial>1654922007334</serial>
<uuid>GPU-9a9a6c50-2a47-2f51-a902-b82c3b127e94</uuid>
<platformInfo><chassis_serial_number>C-77</chassis_serial_number><gpu_fabric_guid>0x3c9fc0d1aa</gpu_fabric_guid></platformInfo>
<fb_memory_usage><total>81559 MiB</total></fb_memory_usage>
<processes><process_info><process_name>/home/bobby/.venv/bin/python</process_name></process_info></processes>
</gpu></nvidia_smi_log>"""


def everything(folder) -> str:
    return "\n".join(str(p) + p.read_text() for p in folder.rglob("*") if p.is_file())


def test_a_capture_names_no_board_unless_asked(tmp_path, monkeypatch):
    (tmp_path / "m/proc/self").mkdir(parents=True)
    (tmp_path / "m/nvidia-smi.xml").write_text(SMI)
    (tmp_path / "m/proc/self/environ").write_bytes(b"CUDA_VISIBLE_DEVICES=GPU-9a9a6c50\0")
    stage(monkeypatch, tmp_path / "m")
    before = detect()
    capture(tmp_path / "c")
    capture(tmp_path / "private", private=True)
    text = everything(tmp_path / "c")
    for word in ("1654922007334", "9a9a6c50", "C-77", "3c9fc0d1aa", "bobby"):
        assert word not in text and (word in everything(tmp_path / "private"))
    after = detect(tmp_path / "c")
    assert after.boards[0].uuid == after.accelerators[0].uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert after.software.visible_devices == after.boards[0].uuid
    asked = detect(tmp_path / "private")
    assert without_ids(to_json(asked)) == without_ids(to_json(before)) and asked.boards == before.boards


def test_amd_ids_are_replaced_wherever_they_stand(tmp_path, monkeypatch):
    node = tmp_path / "m/sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    was = 0xC34EC50444DD0A6C
    (node / "properties").write_text(
        f"simd_count 256\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 6400\nunique_id {was}\n"
    )
    (tmp_path / "m/rocm-smi.json").write_text(
        json.dumps({"card0": {"Unique ID": f"0x{was:x}", "Serial Number": "PCB7"}})
    )
    stage(monkeypatch, tmp_path / "m")
    before = detect()
    assert before.boards[0].uuid == f"GPU-{was:016x}"
    capture(tmp_path / "c")
    text = everything(tmp_path / "c")
    assert str(was) not in text and f"{was:x}" not in text and "PCB7" not in text
    assert detect(tmp_path / "c").boards[0].uuid == "GPU-0000000000000001"


def test_what_a_capture_returns_is_what_it_replays(tmp_path, monkeypatch):
    from hwdetect.measure import take as measure
    from hwdetect.types import Measurement

    own = Measurement(what="host_memory_bandwidth", where="cpu", value=2e10, unit="bytes/s")
    monkeypatch.setattr(measure, "take_measurements", lambda hardware, progress: (own,))
    taken = capture(tmp_path / "c", private=True, measure=True)
    assert taken.measured == (own,) and detect(tmp_path / "c") == taken
    assert capture(tmp_path / "d").measured == ()


@pytest.mark.parametrize("place", ["/proc/nowhere", "file", "file/below"])
def test_a_place_that_cannot_be_written_is_told_by_the_command(place, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from generator.cli import perfgen
    from generator.errors import UsageError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(perfgen, ["detect", "--capture", place])
    assert isinstance(done.exception, UsageError) and place in str(done.exception)


def test_the_command_prints_the_schema():
    from click.testing import CliRunner

    from generator.cli import perfgen
    from hwdetect.jsonio import format_schema

    assert CliRunner().invoke(perfgen, ["detect", "--schema"]).output == format_schema()
