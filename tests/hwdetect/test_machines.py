"""Outputs of other makers' machines that people have published, each with what a person reads off it: `machines/README.md`."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from hwdetect import detect, view
from hwdetect.jsonio import convert_to_mapping, parse_hardware
from hwdetect.types import Hardware

MACHINES = sorted((Path(__file__).parent / "machines").glob("*.toml"))
MIB = 1 << 20
CHECKED = frozenset(
    [
        "boards",
        "accelerators",
        "free_mib",
        "addresses",
        "links",
        "paths",
        "values",
        "absent",
        "isa",
        "kinds",
        "findings",
        "severities",
    ]
)


def lay_out(recording: dict, folder: Path) -> Path:
    for path, text in recording["files"].items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return folder


def read_field(hardware: Hardware, path: str):
    value: object = hardware
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value


def describe_boards(hardware: Hardware) -> list[tuple]:
    rows = [(b.name, b.device or "", b.memory_bytes // MIB if b.memory_bytes else None) for b in hardware.boards]
    return sorted(Counter(rows).items(), key=str)


def find_disagreements(truth: dict, hardware: Hardware) -> list[str]:
    """What the recording's person reads and the Hardware does not say."""
    assert truth.keys() <= CHECKED, truth.keys() - CHECKED
    read: dict[str, object] = {"boards": describe_boards(hardware), "accelerators": len(hardware.accelerators)}
    wanted: dict[str, object] = dict(truth)
    wanted["boards"] = sorted(
        (((b.get("name"), b.get("device", ""), b.get("memory_mib")), b["count"]) for b in truth["boards"]), key=str
    )
    read["findings"] = sorted(finding.id for finding in hardware.findings)
    wanted["findings"] = sorted(truth["findings"])
    read["severities"] = [finding.severity for finding in hardware.findings]
    read["free_mib"] = [
        a.free_memory_bytes // MIB if a.free_memory_bytes is not None else None for a in hardware.accelerators
    ]
    read["addresses"] = [board.pci_address for board in hardware.boards]
    read["links"] = dict(Counter(k.kind + (f" {k.count}" if k.count else "") for k in hardware.links))
    read["paths"] = len(hardware.paths)
    read["isa"] = sorted(
        set(hardware.cpu.isa_features or ()) & {"asimd", "sve", "sve2", "bf16", "i8mm", "avx2", "avx512f"}
    )
    read["kinds"] = [f"{kind.name} {kind.cpus}" for kind in hardware.cpu.core_kinds or ()]
    read["values"] = {path: read_field(hardware, path) for path in truth.get("values", {})}
    read["absent"] = [path for path in truth.get("absent", []) if read_field(hardware, path) is None]
    if "links" in truth:
        wanted["links"] = {kind: int(count) for kind, count in (entry.split(": ") for entry in truth["links"])}
    return [
        f"{key}: a person reads {wanted[key]!r}, detect {read[key]!r}" for key in wanted if wanted[key] != read[key]
    ]


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_reads_what_a_person_reads(path, tmp_path):
    recording = tomllib.loads(path.read_text(encoding="utf-8"))
    hardware = detect(lay_out(recording, tmp_path))
    wrong = find_disagreements(recording["truth"], hardware)
    assert not wrong, "\n".join([recording["what"], *wrong, *map(str, hardware.notes)])
    assert parse_hardware(convert_to_mapping(hardware)) == hardware and view.render(hardware)


def test_every_recording_says_where_it_is_from():
    origins = {}
    for path in MACHINES:
        recording = tomllib.loads(path.read_text(encoding="utf-8"))
        assert recording["what"], path
        origins[path] = recording["origin"]
    told = {path for path, origin in origins.items() if origin.startswith("https://")}
    kept = {path for path, origin in origins.items() if origin.startswith("seen in a public repository on ")}
    assert told | kept == origins.keys() and len(told) >= 99 and len({origins[path] for path in told}) >= 96


def cut_within_a_line(text: str) -> str:
    """Its first three fifths, and no whole number of lines."""
    place = len(text) * 3 // 5
    while place > 2 and text[place - 1].isspace():
        place -= 1
    return text[:place]


@pytest.mark.parametrize("file", MACHINES[::3], ids=lambda path: path.stem)
def test_an_answer_that_is_cut_off_is_never_silent(tmp_path, file):
    """Boards, memory or links that are lost with the end of a tool's answer leave a note."""
    recording = tomllib.loads(file.read_text(encoding="utf-8"))
    whole = detect(lay_out(recording, tmp_path / "whole"))
    tools = [path for path in recording["files"] if "/" not in path]
    for number, path in enumerate(tools):
        cut = {**recording, "files": {**recording["files"], path: cut_within_a_line(recording["files"][path])}}
        read = detect(lay_out(cut, tmp_path / str(number)))
        lost = (len(read.boards), len(read.accelerators), len(read.links)) < (
            len(whole.boards), len(whole.accelerators), len(whole.links))  # fmt: skip
        nulls = [board.memory_bytes for board in read.boards] != [board.memory_bytes for board in whole.boards]
        assert set(read.notes) - set(whole.notes) or not (lost or nulls), path
