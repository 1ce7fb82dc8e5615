"""NVML through a fake: every call with every code, states of boards, MIG, hangs, and the order of visible devices."""

from __future__ import annotations

import time
from dataclasses import fields
from types import SimpleNamespace

import pytest

from hwdetect.assemble import read_machine
from hwdetect.jsonio import convert_to_mapping, parse_hardware
from hwdetect.machine.live import Live
from hwdetect.machine.recorded import Recorded
from hwdetect.probes.nvidia import read as nvidia
from hwdetect.probes.nvidia.nvml_calls import CODES
from hwdetect.probes.visible import select
from tests.hwdetect.fake_nvml import ANSWERS, FakeBoard, FakeNvml


class Machine(Recorded):
    def __init__(self, root, nvml, environment=None):
        super().__init__(root)
        self._nvml, self._environment = nvml, environment or {}

    def find_nvml(self):
        return self._nvml

    def get_variable(self, name):
        return self._environment.get(name)


def boards(count, **facts):
    return [FakeBoard(uuid=f"GPU-{i}aaaaaaa-0000", bus=0x10 + i, **facts) for i in range(count)]


def instance(gpu, compute=0, slices=1, uuid="MIG-1", total=9984 << 20):
    return SimpleNamespace(
        name=f"NVIDIA H100 80GB HBM3 MIG {slices}g.10gb",
        uuid=uuid,
        gpu_instance=gpu,
        compute_instance=compute,
        memory=SimpleNamespace(total=total, free=total, used=0),
        attributes=SimpleNamespace(
            multiprocessorCount=16, gpuInstanceSliceCount=slices, computeInstanceSliceCount=1, memorySizeMB=9984
        ),
    )


def test_there_are_31_codes():
    assert len(CODES) == 31


def unread(healthy, hardware) -> list[str]:
    """Fields of the boards and the software that are null only now."""
    if not hardware.boards:
        return ["boards"]
    pairs = [*zip(healthy.boards, hardware.boards, strict=True), (healthy.software, hardware.software)]
    return [
        f.name
        for was, now in pairs
        for f in fields(was)
        if getattr(was, f.name) is not None and getattr(now, f.name) is None
    ]


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("call", sorted(ANSWERS))
def test_any_code_from_any_call_is_a_note_and_never_a_zero(code, call, tmp_path):
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=boards(2), fails={call: code})), 4.0)
    assert parse_hardware(convert_to_mapping(hardware)) == hardware
    for board in hardware.boards:
        numbers = (board.memory_bytes, board.power_limit_watts, board.pcie.width, board.pcie.generation_max)
        assert all(n is None or n > 0 for n in numbers)
    healthy = read_machine(Machine(tmp_path, FakeNvml(boards=boards(2))), 4.0)
    if unread(healthy, hardware):
        assert set(hardware.notes) - set(healthy.notes), f"{unread(healthy, hardware)} are null and no note says why"


@pytest.mark.parametrize("code", [1, 9, 12, 13, 18, 999])
def test_nvml_that_does_not_start_leaves_no_board_and_says_why(code, tmp_path):
    hardware = read_machine(Machine(tmp_path, FakeNvml(fails={"nvmlInit": code})), 4.0)
    assert not hardware.boards and not hardware.accelerators
    assert any(note.who == "nvmlInit" and f"code {code}" in note.why for note in hardware.notes)


@pytest.mark.parametrize(
    ("code", "state"),
    [(15, "lost"), (16, "reset-required"), (8, "insufficient-power"), (11, "irq-issue"), (17, "blocked-by-system")],
)
def test_a_board_that_will_not_open_is_listed_and_not_used(code, state, tmp_path):
    nvml = FakeNvml(boards=boards(3), fails={"nvmlDeviceGetHandleByIndex": {1: code}})
    hardware = read_machine(Machine(tmp_path, nvml), 4.0)
    assert [b.state for b in hardware.boards] == ["ok", state, "ok"]
    assert [a.board for a in hardware.accelerators] == [0, 2]
    assert [a.index for a in hardware.accelerators] == [0, 1]


def test_a_lost_board_keeps_its_pci_place(tmp_path):
    for bus in (0x10, 0x11):
        folder = tmp_path / f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        folder.mkdir(parents=True)
        for name, value in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330")):
            (folder / name).write_text(value)
    nvml = FakeNvml(boards=boards(2), fails={"nvmlDeviceGetHandleByIndex": {1: 15}})
    hardware = read_machine(Machine(tmp_path, nvml), 4.0)
    assert (hardware.boards[1].pci_address, hardware.boards[1].state) == ("0000:11:00.0", "lost")


def test_an_attribute_that_says_lost_makes_the_board_lost(tmp_path):
    nvml = FakeNvml(boards=boards(2), fails={"nvmlDeviceGetMemoryInfo": {0: 15}})
    hardware = read_machine(Machine(tmp_path, nvml), 4.0)
    assert hardware.boards[0].state == "lost"
    assert [a.board for a in hardware.accelerators] == [1]


def test_unified_memory_is_neither_zero_nor_the_hosts(tmp_path):
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=[FakeBoard(name="NVIDIA GB10", memory_bytes=None)])), 4.0)
    assert hardware.boards[0].memory_bytes is None and hardware.boards[0].unified_memory is True
    assert hardware.accelerators[0].memory_bytes is None


def test_mig_instances_are_the_accelerators(tmp_path):
    own = [instance(7, uuid="MIG-a"), instance(8, uuid="MIG-b")]
    nvml = FakeNvml(boards=[FakeBoard(mig_enabled=True, mig=own, nvlinks=18)])
    hardware = read_machine(Machine(tmp_path, nvml), 4.0)
    assert [(a.profile, a.gpu_instance, a.memory_bytes) for a in hardware.accelerators] == [
        ("1g.10gb", 7, 9984 << 20),
        ("1g.10gb", 8, 9984 << 20),
    ]
    assert hardware.boards[0].nvlinks_active is None and not hardware.links


def test_mig_without_an_instance_is_no_accelerator(tmp_path):
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=[FakeBoard(mig_enabled=True, mig=[])])), 4.0)
    assert len(hardware.boards) == 1 and hardware.accelerators == ()
    assert any("no instance" in note.why for note in hardware.notes)


def test_prohibited_boards_are_not_used(tmp_path):
    nvml = FakeNvml(boards=[FakeBoard(compute_mode=2), FakeBoard(bus=0x20, uuid="GPU-b", compute_mode=3)])
    hardware = read_machine(Machine(tmp_path, nvml), 4.0)
    assert [a.board for a in hardware.accelerators] == [1]


def test_free_memory_is_told_beside_the_total(tmp_path):
    nvml = FakeNvml(boards=[FakeBoard(memory_bytes=80 << 30, used_bytes=72 << 30)])
    accelerator = read_machine(Machine(tmp_path, nvml), 4.0).accelerators[0]
    assert (accelerator.memory_bytes, accelerator.free_memory_bytes) == (80 << 30, 8 << 30)


def test_boards_below_a_switch_are_linked_in_every_pair(tmp_path):
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=boards(8, nvlinks=18))), 4.0)
    assert len(hardware.links) == 28
    assert {(link.kind, link.count, link.bandwidth_bytes_per_s) for link in hardware.links} == {("nvlink", 18, 450e9)}


def test_without_nvlink_pairs_have_their_pcie_distance_and_peer_access(tmp_path):
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=boards(4), p2p=1, level=50)), 4.0)
    assert {(link.kind, link.count, link.p2p) for link in hardware.links} == {("sys", None, False)}


def test_a_hanging_call_keeps_what_was_read_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "NVML_SECONDS", 0.2)
    started = time.monotonic()
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=boards(2), hangs="nvmlDeviceGetNvLinkState")), 4.0)
    assert time.monotonic() - started < 3
    assert len(hardware.boards) == 2 and any("no answer" in note.why for note in hardware.notes)


def test_a_live_probe_that_hangs_is_left_behind(monkeypatch):
    class Hanging(Live):
        def find_nvml(self):
            time.sleep(60)

    started = time.monotonic()
    hardware = read_machine(Hanging(0.5), 0.5)
    assert time.monotonic() - started < 2
    assert hardware.cpu.cpus_online and any(n.who == "deadline" and n.field == "nvidia" for n in hardware.notes)


TWO = boards(2)
VISIBLE = [
    (None, [0, 1]),
    ("", []),
    ("-1", []),
    ("0", [0]),
    ("1,0", [1, 0]),
    (" 1 , 0 ", [1, 0]),
    ("0,-1,1", [0]),
    ("0,0", []),
    ("9", []),
    ("0,9,1", [0]),
    (TWO[1].uuid, [1]),
    ("GPU-1", [1]),
    ("GPU-1,GPU-0", [1, 0]),
    ("GPU-", []),
    ("GPU-0,GPU-0aaaaaaa", []),
    ("MIG-GPU-0aaaaaaa-0000/7/0", []),
    ("MIG-nothing", []),
    ("NoDevFiles", []),
    ("0;rm", [0]),
    ("void", []),
    ("0,GPU-1", [0]),
    ("\x00", []),
    ("١", []),
    ("99999999999999999999", []),
]


@pytest.mark.parametrize(("value", "expected"), VISIBLE)
def test_visible_devices_are_those_of_the_runtime(value, expected, tmp_path):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    hardware = read_machine(Machine(tmp_path, FakeNvml(boards=TWO), environment), 4.0)
    assert [a.board for a in hardware.accelerators] == expected
    assert [a.index for a in hardware.accelerators] == list(range(len(expected)))
    shown = None if value == "\x00" else value  # no environment can hold it
    assert len(hardware.boards) == 2 and hardware.software.visible_devices == shown


@pytest.mark.parametrize(
    "value", [v for v, _ in VISIBLE if v and "GPU" not in v and "MIG" not in v and v.isascii() and v != "\x00"]
)
def test_numbers_are_read_as_torch_reads_them(value):
    torch = pytest.importorskip("torch", reason="the oracle")
    from torch.cuda import _parse_visible_devices  # the list before it is cut to what is there

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", value)
        parsed = _parse_visible_devices()
    assert torch is not None
    fits = []
    for number in parsed:
        if number >= 2:
            break
        fits.append(number)
    from hwdetect.types import Accelerator, Board

    chosen = select(
        value,
        [Accelerator(index=i, board=i) for i in range(2)],
        [Board(index=i, vendor="nvidia") for i in range(2)],
        "cuda",
    )
    assert [a.board for a in chosen] == fits


@pytest.mark.parametrize("value", ["MIG-a", "MIG-GPU-x"])
def test_one_mig_instance_can_be_used(value, tmp_path):
    own = [instance(7, uuid="MIG-a"), instance(8, uuid="MIG-b")]
    nvml = FakeNvml(boards=[FakeBoard(mig_enabled=True, mig=own)])
    hardware = read_machine(Machine(tmp_path, nvml, {"CUDA_VISIBLE_DEVICES": value}), 4.0)
    assert [a.uuid for a in hardware.accelerators] == (["MIG-a"] if value == "MIG-a" else [])


def test_the_old_form_of_a_mig_id(tmp_path):
    uuid = "GPU-00000000-0000-0000-0000-000000000001"
    nvml = FakeNvml(
        boards=[FakeBoard(uuid=uuid, mig_enabled=True, mig=[instance(7, uuid=None), instance(8, uuid=None)])]
    )
    hardware = read_machine(Machine(tmp_path, nvml, {"CUDA_VISIBLE_DEVICES": f"MIG-{uuid}/8/0"}), 4.0)
    assert [a.gpu_instance for a in hardware.accelerators] == [8]
