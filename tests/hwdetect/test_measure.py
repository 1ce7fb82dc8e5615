"""Measurements: what needs no torch, the child's lines, pairs on a fake torch, all-reduce over real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from hwdetect import from_json, to_json, view
from hwdetect.catalog.cpu import cite_sources, describe_cpu
from hwdetect.machine import process as command
from hwdetect.measure import load, rounds
from hwdetect.measure import take as measure
from hwdetect.measure import torch_child as measure_torch
from hwdetect.measure.collective_child import compute_bus_bytes_per_s, start_ranks
from hwdetect.measure.messages import Doubt, collect_measurements
from hwdetect.measure.take import (
    choose_copy_bytes,
    confirm_rate,
    measure_hardware,
    measure_host_copy,
    measure_with_torch,
    open_timed_file,
    take_measurements,
    visit_disk,
)
from hwdetect.probes.nvidia import read as nvidia
from hwdetect.types import MEASURED_BY, Accelerator, Cache, Cpu, Disk, Hardware, Measurement, Memory, Note, Software

GIB = 1 << 30


def test_host_memory_is_timed_without_torch():
    rate = measure_host_copy(2, size=32 << 20, seconds=0.05)
    assert 1e8 < rate < 2e12


def write_stat(path, busy, stolen=0):
    """``busy`` and ``stolen`` seconds of every CPU since the start, as the kernel counts them."""
    hertz = os.sysconf("SC_CLK_TCK")
    rows = [f"cpu{number} {busy * hertz:.0f} 0 0 0 0 0 0 {stolen * hertz:.0f} 0 0" for number in range(256)]
    path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *rows, "intr 1"]))


@pytest.mark.parametrize(
    ("busy", "stolen", "why"), [(0.0, 0.0, None), (5.0, 0.0, "other programs took"), (0.0, 5.0, "the host below")]
)
def test_what_others_compute_meanwhile_is_seen(tmp_path, busy, stolen, why):
    stat = tmp_path / "stat"
    write_stat(stat, 100)
    with load.watch_load(stat) as seen:
        time.sleep(1.5 * load.LEAST_SECONDS)
        write_stat(stat, 100 + busy, stolen)
    told = seen.describe()
    assert told is None if why is None else why in told


def test_own_work_is_no_load_and_a_kernel_that_does_not_say_is_none(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    write_stat(stat, 100)
    own = iter((0.0, 5.0 * load.count_cpus()))
    monkeypatch.setattr(load, "read_own_seconds", lambda: next(own))
    with load.watch_load(stat) as seen:
        time.sleep(1.5 * load.LEAST_SECONDS)
        write_stat(stat, 105)
    assert seen.share == 0 and seen.describe() is None
    monkeypatch.undo()
    with load.watch_load(tmp_path / "absent") as seen:
        time.sleep(1.5 * load.LEAST_SECONDS)
    assert seen.share is None and seen.describe() is None


def test_a_figure_beside_a_load_is_not_used(monkeypatch, no_pause):
    """A process that computes on every CPU meanwhile."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(load.count_cpus())]
    messages: list[str] = []
    try:
        monkeypatch.setattr(measure, "take_visit", partial(rounds.take_visit, most_seconds=0.5))
        taken = take_measurements(Hardware(cpu=Cpu(budget=1)), messages.append)
    finally:
        for process in others:
            process.kill()
            process.wait()
    assert not any(m.what == "host_memory_bandwidth" for m in taken)
    assert any("is not used" in text and "busy" in text for text in messages)


def test_a_figure_that_is_not_used_is_a_note(monkeypatch):
    """Who reads the JSON, or calls the library, sees no progress."""

    def take(hardware, progress):
        progress("host memory: copying on 1 threads")
        progress(Doubt("host_memory_bandwidth of the CPU is not used: busy; measure again"))
        return ()

    monkeypatch.setattr(measure, "take_measurements", take)
    messages: list[str] = []
    hardware = measure_hardware(Hardware(cpu=Cpu(budget=1)), messages.append)
    assert [note.why for note in hardware.notes] == messages[1:] and hardware.notes[0].field == "measured"
    told = list(collect_measurements(['{"doubt": "matmul fp32 is not used"}'], messages.append))
    assert told == [] and isinstance(messages[-1], Doubt)


@pytest.fixture
def no_pause(monkeypatch):
    for module in (measure, rounds):
        monkeypatch.setattr(module, "PAUSE_SECONDS", 0)


@pytest.mark.parametrize(
    ("rates", "taken", "stable"),
    [
        ([100, 101, 99, 50], [100, 101, 99], True),  # three agree: no fourth
        ([100, 30, 99, 100, 102], [100, 30, 99, 100, 102], True),  # one round says little
        ([100, 50, 52, 98, 75, 60, 99], [100, 50, 52, 98, 75, 60, 99], False),
        ([None, 100, None, None, 101, 102, 50], [100, 101, 102], True),  # the disturbed are left out
    ],
)
def test_rounds_are_repeated_until_they_agree(monkeypatch, rates, taken, stable):
    """``None``: a round during which others computed."""
    ahead = iter(rates)

    class Clock:
        seconds = 0.0

    def measure_once():
        Clock.seconds += 1
        return {"copy": next(ahead)}

    @contextmanager
    def watch():
        seen = load.Load()
        yield seen
        seen.share = 0.5 if rates[int(Clock.seconds) - 1] is None else 0.0

    monkeypatch.setattr(rounds, "watch_load", watch)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: Clock.seconds)
    visit = rounds.take_visit(measure_once, most_seconds=len(rates) - 0.5)
    assert visit.rates["copy"] == taken and visit.is_stable() == stable
    assert (visit.busy is not None) == (None in rates)


@pytest.mark.parametrize(
    ("visits", "value", "doubt"),
    [
        ([[100, 101, 99], [98, 99, 100], [101, 101, 102]], 100, None),
        (
            [[37.6, 37.5, 37.6], [29, 29, 29.1], [28.7, 28.8, 28.7]],
            29,
            "unsteady",
        ),  # a neighbour was quiet for a second
        ([[28.7, 28.8, 28.7], [37.6, 37.5, 37.6], None], 28.7, "unsteady"),  # of two, what is there when it is busy
        ([[100, 101, 99], None, [101, 101, 101]], 100, None),  # others computed during one of them
        ([[100, 101, 99], None, None], None, "not used: others"),
        ([None, None, None], None, "not used: others"),
        ([[100, 50, 52, 98, 75, 60, 99], [100, 100, 100], [100, 100, 100]], 100, "unsteady"),
    ],
)
def test_visits_that_lie_apart_must_agree(visits, value, doubt):
    """``None``: a visit during which others computed, so that too few rounds were undisturbed."""
    taken = [rounds.Visit({"copy": rates} if rates else {}, busy=None if rates else "others") for rates in visits]
    figure = rounds.join_visits(taken, "copy", "bytes/s")
    assert figure.value == value and figure.doubt is None if doubt is None else doubt in figure.doubt
    assert figure.value == value


def test_a_machine_too_slow_for_three_rounds_has_a_figure():
    visit = rounds.take_visit(lambda: {"copy": 7.0}, most_seconds=0)
    figure = rounds.join_visits([visit] * 3, "copy", "bytes/s")
    assert (figure.value, figure.spread, figure.doubt) == (7.0, 0.0, None)


def test_memory_and_disk_are_visited_before_and_after_what_torch_times(tmp_path, monkeypatch, no_pause):
    turns: list[str] = []
    rates = chain([37.6e9] * 3, repeat(29e9))

    def copy(threads, size):
        turns.append("memory")
        return next(rates)

    def use_torch(threads, progress):
        turns.append("torch")
        return ()

    monkeypatch.setattr(measure, "measure_host_copy", copy)
    monkeypatch.setattr(measure, "measure_with_torch", use_torch)
    monkeypatch.setattr(measure, "visit_disk", lambda file: turns.append("disk") or rounds.Visit({"read": [1e9]}))
    monkeypatch.setattr(measure, "FILE_BYTES", 1 << 20)
    monkeypatch.setattr(rounds, "watch_load", lambda: nullcontext(load.Load()))
    disk = Disk(role="work", path=str(tmp_path), writable=True, free_bytes=100 * GIB)
    software = Software(torch="2.13.0", virtualization="kvm")
    taken = measure_hardware(Hardware(cpu=Cpu(budget=2), disks=(disk,), software=software), lambda text: None)
    once = ["memory"] * 3 + ["disk"]
    assert turns == [*once, "torch", *once, *once]
    memory, reads = taken.measured
    assert memory.value == 29e9 and memory.unsteady and (reads.value, reads.spread) == (1e9, 0.0)
    assert [note.why.partition(" is ")[0] for note in taken.notes][:1] == ["host_memory_bandwidth of the CPU"]
    assert taken.notes[-1].why == measure.NEIGHBOURS
    text = view.render(taken)
    assert "Measured (in a virtual machine" in text and "29 GB/s (unsteady: 30% apart)" in text
    bare = measure_hardware(Hardware(software=Software(virtualization="none")), lambda text: None)
    assert measure.NEIGHBOURS not in [note.why for note in bare.notes]


def test_figures_of_a_device_that_others_use_are_left_out(monkeypatch):
    """A job beside this one halves them in every visit alike: nothing in the figures themselves shows it."""

    def took(what, where):
        return Measurement(what=what, where=where, value=1e12, unit="flop/s")

    ones = [took("matmul", f"accelerator {n}") for n in (0, 1, 10)]
    pairs = [took("peer_copy", f"accelerators {a}-{b}") for a, b in ((0, 1), (0, 10))]
    everything = (took("matmul", "cpu"), *ones, *pairs, took("all_reduce_bus", "accelerators 0-10"))
    monkeypatch.setattr(measure, "take_measurements", lambda hardware, tell: everything)
    idle = [Accelerator(index=n, board=n, memory_bytes=80 * GIB, free_memory_bytes=79 * GIB) for n in (0, 1, 10)]
    assert measure_hardware(Hardware(accelerators=tuple(idle)), lambda text: None).measured == everything
    idle[1] = replace(idle[1], free_memory_bytes=50 * GIB)
    taken = measure_hardware(Hardware(accelerators=tuple(idle)), lambda text: None)
    assert [m.where for m in taken.measured] == ["cpu", "accelerator 0", "accelerator 10", "accelerators 0-10"]
    assert taken.measured[-1].what == "peer_copy"
    (told,) = taken.notes
    assert told.why == "accelerator 1 is not used: busy: others use 30.0 of 80.0 GiB; measure again"


@pytest.mark.parametrize(
    ("kind", "hip", "capability", "timed"),
    [
        ("cuda", None, (8, 0), True),
        ("cuda", None, (7, 5), False),
        ("cuda", "7.2", (9, 4), False),
        ("xpu", None, (), False),
    ],
)
def test_tf32_is_timed_where_there_is_such_a_thing(monkeypatch, kind, hip, capability, timed):
    torch = SimpleNamespace(
        accelerator=SimpleNamespace(set_device_index=lambda index: None, synchronize=lambda index: None),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None))),
        cuda=SimpleNamespace(get_device_capability=lambda index: capability),
        version=SimpleNamespace(hip=hip),
        randn=lambda *size, device: 1.0,
    )
    monkeypatch.setattr(measure_torch, "time_matmul", lambda *given: 1e14)
    monkeypatch.setattr(measure_torch, "time_best_run", lambda *given: 0.01)
    monkeypatch.setattr(measure_torch, "time_copies", lambda torch, device, wait: {})
    assert ("matmul tf32" in measure_torch.visit_device(torch, kind, 0, set()).rates) is timed


def test_products_of_several_sizes_are_timed_and_a_long_one_is_not(monkeypatch, capsys, no_pause):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(measure_torch, "CPU_SIZES", (32, 64))
    monkeypatch.setattr(measure_torch, "SLOW_SIZES", (8, 16))
    monkeypatch.setattr(measure_torch, "ROUND_SECONDS", 0.02)
    monkeypatch.setattr(rounds, "watch_load", lambda: nullcontext(load.Load()))
    measure_torch.measure_cpu(torch, 1, 0.1)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(m["dtype"], m["size"]) for m in told if "what" in m] == [
        (d, n) for d in ("bf16", "fp32") for n in (64, 32)
    ]
    monkeypatch.setattr(measure_torch, "PRODUCT_SECONDS", 0.0)
    assert {size for _, size, _, _ in measure_torch.prepare_products(torch, (32, 64))} == {8}


def test_the_disk_is_timed_out_of_the_page_cache(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        measure, "_read_once", lambda descriptor, of=measure._read_once: read.append(of(descriptor)) or read[-1]
    )
    with open_timed_file(tmp_path, size=16 << 20) as file:
        visit = visit_disk(file, seconds=0.5)
    assert all(1e6 < rate < 1e11 for rate in read) and (visit.busy or visit.rates["read"] == [max(read)])
    assert list(tmp_path.iterdir()) == [], "its file is gone"
    with open_timed_file(tmp_path / "absent", size=1 << 20) as file:
        assert file is None


def test_a_disk_that_fails_in_the_middle_is_said(tmp_path, monkeypatch):
    with open_timed_file(tmp_path, size=1 << 20) as file:
        monkeypatch.setattr(measure.os, "read", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        visit = visit_disk(file)
    assert "Input/output error" in rounds.join_visits([visit] * 3, "read", "bytes/s").doubt


@pytest.mark.parametrize(
    ("caches", "available", "expected"),
    [
        (None, 64 * GIB, 256 << 20),
        ((Cache(level=3, kind="unified", size_bytes=32 << 20, count=12),), 512 * GIB, 4 * 12 * 32 << 20),
        ((Cache(level=3, kind="unified", size_bytes=32 << 20, count=12),), 4 * GIB, GIB // 2),
        ((Cache(level=2, kind="unified", size_bytes=32 << 20, count=99),), 64 * GIB, 256 << 20),
        (None, 1 << 20, 64 << 20),
    ],
)
def test_more_is_copied_than_caches_hold_and_less_than_memory_spares(caches, available, expected):
    assert choose_copy_bytes(Hardware(cpu=Cpu(caches=caches), memory=Memory(available_bytes=available))) == expected


def test_without_torch_the_cpu_part_is_there_and_says_so(tmp_path, monkeypatch, no_pause):
    monkeypatch.setattr(measure, "measure_host_copy", lambda threads, size: 2e10)
    monkeypatch.setattr(measure, "FILE_BYTES", 1 << 20)
    monkeypatch.setattr(measure, "visit_disk", lambda file: rounds.Visit({"read": [1e9]}))
    messages: list[str] = []
    disk = Disk(role="work", path=str(tmp_path), writable=True, free_bytes=100 * GIB)
    measurements = take_measurements(Hardware(cpu=Cpu(budget=2), disks=(disk,)), messages.append)
    assert [(m.what, m.basis) for m in measurements] == [
        ("host_memory_bandwidth", "measured"),
        ("disk_read", "measured"),
    ]
    assert any("memory" in text for text in messages) and any("torch is not installed" in text for text in messages)
    read_only = replace(disk, writable=False)
    assert len(take_measurements(Hardware(disks=(read_only,)), messages.append)) == 1


def test_the_child_measures_and_is_read():
    pytest.importorskip("torch")
    messages: list[str] = []
    measurements = measure_with_torch(2, messages.append, visit_seconds=0.5)
    refused = [text for text in messages if text.startswith("matmul fp32") and "is not used: busy" in text]
    taken = [m for m in measurements if (m.what, m.where, m.dtype) == ("matmul", "cpu", "fp32")]
    assert (
        1 <= len(taken) + len(refused) <= 3
    )  # one of each size that its time is enough for; others may compute beside
    assert all(m.value > 1e8 and m.size for m in measurements)


def test_a_child_that_hangs_costs_its_time_and_keeps_what_it_told(tmp_path, monkeypatch):
    line = json.dumps({"what": "matmul", "where": "cpu", "value": 1e11, "unit": "flop/s", "dtype": "fp32"})
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho 'a library says hello'\necho '{line}'\nsleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(command.sys, "executable", str(program))
    measurements = measure_with_torch(1, lambda text: None, seconds=0.5)
    assert [(m.what, m.value) for m in measurements] == [("matmul", 1e11)]


def test_measurements_come_back_from_json_and_are_shown():
    own = (Measurement(what="matmul", where="cpu", value=1.5e12, unit="flop/s", dtype="bf16"),
           Measurement(what="peer_copy", where="accelerators 0-1", value=2.5e10, unit="bytes/s"))  # fmt: skip
    hardware = Hardware(measured=own)
    assert from_json(json.loads(json.dumps(to_json(hardware)))) == hardware
    text = view.render(hardware)
    marked = replace(own[0], size=1024, spread=0.25)
    assert "matmul bf16, 1024 rows: 1.5 TFLOP/s (unsteady: 25% apart)" in view.render(Hardware(measured=(marked,)))
    assert "matmul bf16: 1.5 TFLOP/s" in text and "accelerators 0-1: peer copy: 25 GB/s" in text


def test_a_measured_rate_wins_over_the_derived_one():
    cpu = Cpu(cores=2, cpus_online=2, budget=2, isa_features=("avx2",), max_hz=3_000_000_000)
    own = (Measurement(what="matmul", where="cpu", value=7.7e10, unit="flop/s", dtype="fp32"),
           Measurement(what="host_memory_bandwidth", where="cpu", value=1.1e10, unit="bytes/s"))  # fmt: skip
    device = describe_cpu(cpu, own, 8 * GIB)
    assert device.flops("fp32") == 7.7e10 and device.memory_bytes_per_s == 1.1e10


@pytest.mark.parametrize(("larger", "rate"), [(3.9e11, 4.1e11), (1.34e11, 1.34e11)])
def test_a_rate_that_only_a_small_product_reaches_is_not_planned_with(larger, rate):
    own = tuple(
        Measurement(what="matmul", where="cpu", value=value, unit="flop/s", dtype="bf16", size=size)
        for size, value in ((4096, larger), (1024, 4.1e11))
    )
    assert describe_cpu(Cpu(cores=2), own, 8 * GIB).flops("bf16") == rate


class FakeTorch:
    """Devices that copy at known rates: enough of torch for ``measure_peer_copies`` and ``measure_copies``, with its clock."""

    uint8 = "uint8"

    def __init__(self, rate):
        self.now, self.rate, self.waited = 0.0, rate, []
        self.accelerator = SimpleNamespace(synchronize=self.waited.append)

    def block(self, size, device):
        def copy_(other, non_blocking=False):
            self.now += size / self.rate(other.device, device)

        block = SimpleNamespace(device=device, copy_=copy_)
        block.pin_memory = lambda: self.block(size, "pinned")
        return block

    def zeros(self, count, device="pageable", dtype=None):
        return self.block(count if dtype else 4 * count, device)

    def empty(self, count, dtype, device):
        return self.block(count, device)

    def empty_like(self, other):
        return self.block(1 << 20, other.device)

    @contextmanager
    def clock(self, monkeypatch):
        monkeypatch.setattr(measure_torch.time, "perf_counter", lambda: self.now)
        yield
        monkeypatch.undo()


def lines(capsys) -> dict[tuple[str, str], float]:
    messages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {(s["what"], s["where"]): s["value"] for s in messages if "what" in s}


def test_every_pair_of_devices_is_timed(monkeypatch, capsys):
    near = {("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")}
    torch = FakeTorch(lambda a, b: 2e11 if (a, b) in near else 2e10)
    with torch.clock(monkeypatch):
        measure_torch.measure_peer_copies(torch, "cuda", 4, size=1 << 20)
    measurements = lines(capsys)
    assert len(measurements) == 6
    assert measurements["peer_copy", "accelerators 0-1"] == pytest.approx(2e11)
    assert measurements["peer_copy", "accelerators 1-2"] == pytest.approx(2e10)
    assert set(torch.waited) == {0, 1, 2, 3}


def test_copies_to_and_from_a_device(monkeypatch):
    rates = {("cuda:0", "cuda:0"): 1e12, ("pinned", "cuda:0"): 5e10, ("cuda:0", "pinned"): 4e10,
             ("pageable", "cuda:0"): 1e10, ("cuda:0", "pageable"): 5e9}  # fmt: skip
    torch = FakeTorch(lambda a, b: rates[a, b])
    with torch.clock(monkeypatch):
        measurements = measure_torch.time_copies(torch, "cuda:0", lambda: None, size=1 << 20)
    assert measurements == pytest.approx(
        {"device_memory_bandwidth": 2e12, "host_to_device_pinned": 5e10, "device_to_host_pinned": 4e10,
         "host_to_device_pageable": 1e10, "device_to_host_pageable": 5e9}
    )  # fmt: skip


def test_all_reduce_over_two_processes(capfd):
    pytest.importorskip("torch")
    start_ranks(2, "gloo", "cpu", 4 << 20)
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    (messages,) = [message for message in told if "what" in message]  # beside others it is unsteady, and says so
    assert (messages["what"], messages["where"], messages["unit"]) == ("all_reduce_bus", "accelerators 0-1", "bytes/s")
    assert 1e7 < messages["value"] < 1e12


def test_all_reduce_that_cannot_start_says_so(capfd):
    start_ranks(2, "nosuchbackend", "cpu", 1 << 20)
    assert "2 of 2 processes" in capfd.readouterr().out


@pytest.mark.parametrize(("world", "expected"), [(2, 1e9), (4, 1.5e9), (8, 1.75e9)])
def test_bus_bandwidth_as_nccl_tests_define_it(world, expected):
    assert compute_bus_bytes_per_s(world, 10**9, 1.0) == expected


def test_nothing_is_measured_on_a_recording(tmp_path):
    from hwdetect import detect

    assert detect(tmp_path, measure=True).measured == ()


def test_the_devices_of_a_machine_are_visited_in_turn(monkeypatch, capsys):
    """A device whose second visit is slower is unsteady; a dtype that it refuses is told once."""
    torch = SimpleNamespace(
        accelerator=SimpleNamespace(set_device_index=lambda index: None, synchronize=lambda index: None),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None))),
    )
    visited: list[str] = []

    def time_one(torch, device, where, dtype, size, wait):
        visited.append(f"{device} {dtype}")
        if dtype == "int8":
            measure_torch.print_message(doubt=f"{where}: no int8 matmul")
            return None
        return 5e13 if visited.count("xpu:1 float16") == 2 and device == "xpu:1" else 1e14

    monkeypatch.setattr(measure_torch, "time_matmul", time_one)
    monkeypatch.setattr(measure_torch, "time_copies", lambda torch, device, wait: {"device_memory_bandwidth": 4e11})
    measure_torch.measure_devices(torch, "xpu", 2)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    figures = {(m["where"], m.get("dtype") or m["what"]): (m["value"], m["spread"]) for m in told if "what" in m}
    assert figures["accelerator 0", "fp16"] == (1e14, 0.0) and figures["accelerator 1", "fp16"] == (1e14, 0.5)
    assert figures["accelerator 1", "device_memory_bandwidth"] == (4e11, 0.0) and len(figures) == 8
    doubts = [m["doubt"] for m in told if "doubt" in m]
    assert doubts[:2] == ["accelerator 0: no int8 matmul", "accelerator 1: no int8 matmul"]
    assert any(doubt.startswith("matmul fp16 of accelerator 1 is unsteady") for doubt in doubts[2:])


def test_the_software_says_whether_torch_is_here(monkeypatch, no_pause):
    monkeypatch.setattr(measure, "measure_host_copy", lambda threads, size: 2e10)
    monkeypatch.setattr(
        measure,
        "measure_with_torch",
        lambda threads, progress: (Measurement(what="x", where="y", value=1.0, unit="z"),),
    )
    assert take_measurements(Hardware(software=Software(torch="2.13.0")), lambda text: None)[-1].what == "x"


def test_files_of_the_working_folder_stand_in_for_nothing(tmp_path, monkeypatch):
    for name in ("json", "time", "torch", "pickle", "pynvml", "hwdetect"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)\n")
    monkeypatch.chdir(tmp_path)
    ended = command.run_process(command.build_own_command(nvidia.NVML_CHILD), 10)
    assert ended.code == 0 and ended.raw


@pytest.mark.parametrize(
    ("features", "cited"),
    [
        (("avx2", "avx512f", "avx512_bf16"), {"peak_flops.*"}),  # AMD and Intel alike
        (("avx512f", "amx_bf16", "amx_int8"), {"peak_flops.*", "peak_flops.amx"}),
        (("asimd", "bf16"), {"peak_flops.*", "peak_flops.arm"}),
        (None, {"peak_flops.*"}),
    ],
)
def test_a_cpus_rates_cite_a_makers_manual_only_where_it_is_about_this_cpu(features, cited):
    sources = dict(cite_sources(Cpu(cores=4, isa_features=features)))
    assert sources.keys() == cited | {"memory.bytes_per_s"}
    assert "intel" not in sources["peak_flops.*"] and "arm.com" not in sources["peak_flops.*"]


@pytest.mark.parametrize(
    ("rates", "rate"),
    [
        ([], None),
        ([1e9], None),
        ([1e9, 0.95e9], 1e9),
        ([2.6e8, 2.2e9, 1.1e9], None),  # of a shared disk: each run gave another figure
        ([0.3e9, 1.0e9, 0.4e9, 0.98e9], 1.0e9),
    ],
)
def test_a_read_is_a_figure_where_a_second_comes_near_the_fastest(rates, rate):
    assert confirm_rate(rates) == rate


def test_a_plan_says_what_was_not_measured_well():
    from generator.decide.notes import note_measurements

    busy = "busy: other programs took 80% of its CPUs' time; measure again"
    told = [f"{name} is not used: {busy}" for name in ("matmul fp32 of 1024 rows of the CPU", "disk_read")]
    unsteady = (
        "host_memory_bandwidth of the CPU is unsteady: rounds of 3 visits gave 28 to 38 bytes/s, the middle is taken"
    )
    notes = tuple(Note(field="measured", who=MEASURED_BY, why=why) for why in (*told, unsteady))
    other = Note(field="boards", who="NVML", why="no driver")
    assert [note.text for note in note_measurements(Hardware(notes=(other, *notes)))] == [
        f"measured and not used: matmul fp32 of 1024 rows of the CPU, disk_read: {busy}",
        f"measured: {unsteady}",
    ]
    assert note_measurements(Hardware(notes=(other,))) == ()
