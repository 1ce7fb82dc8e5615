"""Hardware files that a person hands over: a plan, or one line with the field, what it is and what it may be."""

from __future__ import annotations

import json
import math
import typing
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hwdetect
from generator.case.devices import assume_device, group_equal_accelerators, make_case
from generator.case.request import Request
from generator.case.sources import read_work
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.errors import PerfgenError, UsageError
from generator.inputs.hardware import read_hardware
from generator.pipeline import plan_request
from hwdetect import checks
from hwdetect.spec import parse_spec
from hwdetect.types import Board, Hardware

ROOT = Path(__file__).resolve().parent.parent


SPECS = ("2xt4", "2xa100:3g.40gb", "2x2xh100-sxm-80gb", "8xa100-sxm-40gb", "cpu:16+amx", "p3.8xlarge")


@cache
def list_real_files() -> tuple[dict, ...]:
    """The machine of the golden record that is a file, some that are written out from a few words, recorded ones if at hand."""
    files = [json.loads(p.read_text()) for p in sorted(ROOT.glob("examples/*/hardware.json"))]
    return (*files, *(json.loads(json.dumps(hwdetect.to_json(parse_spec(text)))) for text in SPECS))


def refuse(tmp_path: Path, content: bytes | dict) -> str:
    """The message that a file is refused with."""
    file = tmp_path / "hw.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(UsageError) as error:
        read_hardware(str(file))
    assert len(str(error.value)) < 500 + len(str(file)) and "Traceback" not in str(error.value)
    return str(error.value)


def change(path: str, value: object, spec: str = "2xh100-sxm-80gb") -> dict:
    """The file of ``spec`` with the field at ``path`` set to ``value``."""
    content = json.loads(json.dumps(hwdetect.to_json(parse_spec(spec))))
    at = content
    *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in above:
        at = at[part]
    at[last] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("memory.total_bytes", 0, "memory.total_bytes: a whole number from 1 to 2^60 is expected (it is 0)"),
        ("memory.total_bytes", -1, "(it is -1)"),
        ("memory.total_bytes", 10**99, "a number of more digits than anything has"),
        ("memory.total_bytes", True, "memory.total_bytes"),
        ("memory.total_bytes", "17179869184", "memory.total_bytes"),
        ("cpu.quota", math.nan, "cpu.quota: a number from 0.001 to 65536 is expected (it is NaN)"),
        ("cpu.quota", math.inf, "(it is Infinity)"),
        ("cpu.cores", -4, "cpu.cores"),
        ("cpu.budget", 10**9, "cpu.budget"),
        ("nodes.count", 0, "nodes.count"),
        ("boards.1.memory_bytes", -5, "boards.1.memory_bytes"),
        ("boards.1.memory_bytes", 1 << 50, "no more than h100-sxm-80gb has"),
        ("boards.1.index", 0, "boards.1.index: each index may stand once (it is 0)"),
        ("boards.0.device", "h1000", "boards.0.device: an id that `perfgen devices` lists, as h100"),
        ("boards.0.vendor", "amd", "boards.0.vendor: nvidia is expected"),
        ("boards.0.compute_capability", "9", "MAJOR.MINOR"),
        ("boards.0.compute_capability", "9.0a", "MAJOR.MINOR"),
        ("boards.0.numa_node", -7, "boards.0.numa_node"),
        ("boards.0.name", "x" * 5000, "boards.0.name"),
        ("boards.0.name", "a\0b", "boards.0.name"),
        (
            "accelerators.0.board",
            7,
            "accelerators.0.board: the index of one of the boards (0, 1) is expected (it is 7)",
        ),
        ("accelerators.1.index", 0, "accelerators.1.index"),
        ("accelerators.0.compute_share", 0, "accelerators.0.compute_share"),
        ("accelerators.0.compute_share", 1.5, "accelerators.0.compute_share"),
        ("accelerators.0.memory_bytes", 1 << 40, "no more than its board has"),
        ("accelerators.0.free_memory_bytes", 1 << 40, "no more than all of its memory has"),
        ("links.0.b", 9, "links.0.b"),
        ("links.0.b", 0, "links.0.b: another board than a"),
        ("links.0.bandwidth_bytes_per_s", 0, "links.0.bandwidth_bytes_per_s"),
        ("links", [{"a": 0, "b": 1, "kind": "sys"}] * 40_000, "links: at most 32640 entries"),
        ("disks", {"role": "work"}, "disks"),
        ("schema", 9, "schema: this version reads 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused_with_its_path(tmp_path, path, value, told):
    assert told in refuse(tmp_path, change(path, value))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"schema": 1, "memory": {"total_bytes": ' + b"9" * 5000 + b"}}", "memory.total_bytes"),
        (b'{"schema": 1, "cpu": {"quota": 1e999}}', "(it is Infinity)"),
        (b'{"schema": 1, "cpu": {}, "cpu": {}}', "the key 'cpu' stands twice"),
        (b'{"schema": 1, "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nests deeper than"),
        (b'{"schema": 1, "x": ' + b"[" * 100_000, "hw.json"),
        (b"\xff\xfe{\x00", "hw.json"),
    ],
    ids=["5000 digits", "1e999", "repeated key", "deep", "endless", "UTF-16"],
)
def test_what_is_no_machine_is_refused(tmp_path, content, told):
    assert told in refuse(tmp_path, content)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    machine = parse_spec("1xt4")
    file = tmp_path / "hw.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(hwdetect.to_json(machine)).encode())
    assert read_hardware(str(file)) == machine


def flatten_hint(hint: object) -> set:
    """``int`` and ``None`` of ``tuple[int | None, ...] | None``."""
    parts = typing.get_args(hint)
    return set().union(*map(flatten_hint, parts)) if parts and typing.get_origin(hint) is not typing.Literal else {hint}


def test_every_amount_has_a_range():
    """A new number in types.py needs a row in checks.py."""
    seen: set[type] = set()

    def visit(kind: type) -> None:
        seen.add(kind)
        for name, hint in typing.get_type_hints(kind).items():
            inner = flatten_hint(hint)
            if inner & {int, float}:
                assert name in checks.RANGES.get(kind, {}) or (kind, name) == (Hardware, "schema"), (kind, name)
            for below in inner:
                if is_dataclass(below) and below not in seen:
                    visit(below)

    visit(Hardware)
    assert checks.RANGES.keys() <= seen
    for kind, ranges in checks.RANGES.items():
        assert ranges.keys() <= {field.name for field in fields(kind)}


def test_a_reading_loses_what_cannot_be_and_says_so():
    machine = checks.drop_faults(hwdetect.from_json(change("cpu.cores", 4)))
    assert machine.cpu.cores == 4
    board = replace(machine.boards[0], temperature_c=1e9, memory_bytes=-1, index=1)
    broken = replace(
        machine,
        boards=(board, machine.boards[1]),
        cpu=replace(machine.cpu, quota=math.nan, isa_features=("a" * 9000, "avx2")),
        nodes=replace(machine.nodes, count=0),
    )
    kept = checks.drop_faults(broken)
    assert list(checks.find_faults(kept)) == []
    assert (kept.cpu.quota, kept.cpu.isa_features, kept.cpu.cores) == (None, ("avx2",), 4)
    assert [b.index for b in kept.boards] == [1] and [a.board for a in kept.accelerators] == [1] and not kept.links
    told = {note.field: note.why for note in kept.notes}
    assert "read NaN" in told["cpu.quota"] and "each index may stand once" in told["boards.1.index"]


@pytest.mark.parametrize(
    ("capability", "like"),
    [
        ("99.9", "newer than any that perfgen knows (12.0)"),
        ("10.7", "assumed to run like NVIDIA VR200"),
        ("10.6", "assumed to run like NVIDIA B300"),
        (None, "could not be read"),
    ],
)
def test_what_an_unknown_board_is_taken_for_is_stated(capability, like):
    board = Board(index=0, vendor="nvidia", name="NVIDIA X999", memory_bytes=80 << 30, compute_capability=capability)
    device = assume_device(board)
    assert device.compute_capability == capability and device.basis == "assumed" and not device.unified_memory
    assert like in device.sources[0][1]
    if capability == "99.9":
        # RTX PRO 5000 with 72 GB: 72 is nearer to 80 than 96 is
        assert device.architecture == "blackwell" and device.flops("bf16") > 2e14


ODD = st.one_of(
    st.sampled_from(
        [0, -1, 1, True, None, 1.5, 1e308, math.nan, math.inf, -math.inf, 10**30, 2**63, "", "x", "-1", "99.9", "3.5",
         "nvidia", "amd", "h100", "0.0", "a\0", "\x1b[2J", "{{ 7*7 }}", [], {}, [[]], {"a": 1}, [1, 2], "9" * 4000,
         10**4000 % 10**200]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20).filter(lambda text: text.isprintable()),
)  # fmt: skip


def list_places(value: object, path: tuple = ()) -> list[tuple]:
    """The path of everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(*path, key) for key, _ in items] + [p for key, item in items for p in list_places(item, (*path, key))]


@st.composite
def mutated(draw) -> dict:
    """A real file after one to four accidents: a value changed, doubled, taken away, moved."""
    content = json.loads(json.dumps(draw(st.sampled_from(list_real_files()))))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(list_places(content)))
        at = content
        for key in place[:-1]:
            at = at[key]
        kind = draw(st.sampled_from(("set", "set", "set", "drop", "double", "swap")))
        if kind == "drop":
            del at[place[-1]]
        elif kind == "double" and isinstance(at, list):
            at.append(at[place[-1]])
        elif kind == "swap" and isinstance(at, dict):
            other = draw(st.sampled_from(sorted(at)))
            at[place[-1]], at[other] = at[other], at[place[-1]]
        else:
            at[place[-1]] = deepcopy(draw(ODD))  # a list that is drawn is changed by what comes after
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated")


def hold(folder: Path, content: dict, *, plan: bool) -> bool:
    """Whether the machine is taken; then its cases (and with ``plan`` a plan) are of finite numbers. All else is a message."""
    file = folder / "hw.json"
    file.write_text(json.dumps(content))
    try:
        machine = read_hardware(str(file))
        json.dumps(hwdetect.to_json(machine), allow_nan=False)
        for used in group_equal_accelerators(machine):
            case = make_case(machine, used, *make_work())
            assert case.device_memory_bytes > 0
        if plan:
            planned = plan_request(Request(hardware=str(file), offline=True))
            json.dumps(to_json(build_document(planned)), allow_nan=False)
    except PerfgenError as error:
        assert error.code in (2, 3), error
        return False
    return True


@cache
def make_work() -> tuple:
    work = read_work(Request(offline=True))
    return work.spec, work.workload


EASY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@settings(EASY, max_examples=500)
@given(mutated())
def test_a_changed_file_is_a_machine_or_a_message(folder, content):
    hold(folder, content, plan=False)


@settings(EASY, max_examples=300)
@given(mutated(), st.booleans())
def test_a_changed_recording_is_read(folder, content, cut):
    """The machine.json of a capture: what is wrong with it is a note, and nothing impossible comes out."""
    text = json.dumps(content)
    (folder / "machine.json").write_text(text[: len(text) // 2] if cut else text)
    machine = hwdetect.detect(folder)
    assert list(checks.find_faults(machine)) == []
    assert hwdetect.from_json(json.loads(json.dumps(hwdetect.to_json(machine), allow_nan=False))) == machine
    assert not cut or any(note.who == "machine.json" for note in machine.notes)


@settings(EASY, max_examples=25)
@given(mutated())
def test_a_changed_file_is_a_plan_or_a_message(folder, content):
    hold(folder, content, plan=True)


@pytest.mark.slow
@settings(EASY, max_examples=500)
@given(mutated())
def test_many_changed_files_are_plans_or_messages(folder, content):
    hold(folder, content, plan=True)


@pytest.mark.slow
@settings(EASY, max_examples=20_000)
@given(mutated())
def test_many_changed_files_are_machines_or_messages(folder, content):
    hold(folder, content, plan=False)


def test_cpus_of_several_nodes_are_not_passed_over_in_silence():
    """They train together, and answer alone."""
    assert plan_request(Request(hardware="2x1xcpu:4", offline=True)).plan.best.layout.nodes == 2
    notes = plan_request(Request(hardware="2x1xcpu:4", mode="infer", offline=True)).notes
    assert any("one of the 2 nodes" in note.text for note in notes)


def test_the_unchanged_files_are_taken(folder):
    assert all(hold(folder, content, plan=False) for content in list_real_files())
