"""Every recording agrees with its truth table in every cell that the table has."""

from __future__ import annotations

import csv

import pytest

from hwdetect import detect, view
from hwdetect.assemble import read_machine
from hwdetect.jsonio import convert_to_mapping, parse_hardware
from hwdetect.machine.recorded import Recorded
from tests.hwdetect import truth
from tests.hwdetect.conftest import SHARED, index_rows
from tests.hwdetect.fake_nvml import FakeBoard, FakeNvml

TABLES = ("TRUTH.csv", "TRUTH_ISA.csv", "TRUTH_TOPO.csv", "TRUTH_GPU.csv", "TRUTH_SYSTEMS.csv")
# Columns that the README of the tables declares as explanation, or that only name the row.
EXPLAIN = {"id", "root", "kind", "source", "rule", "note", "isa_more", "lscpu", "hwloc"}


def rows_of(table: str) -> list[dict[str, str]]:
    with (SHARED / table).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def truth_rows(name: str) -> list[tuple[str, dict[str, str]]]:
    return [(table, row) for table in TABLES for row in rows_of(table) if row["id"] == name]


class WithNvml(Recorded):
    """A recording folder (empty) whose NVML answers."""

    def __init__(self, root, nvml):
        super().__init__(root)
        self._nvml = nvml

    def find_nvml(self):
        return self._nvml


def from_facts(row: dict[str, str], folder):
    """The server type that the facts of a vendor's mock describe, through a fake NVML."""
    major, minor = row["compute_capability"].split(".")
    boards = [
        FakeBoard(
            name=row["name"],
            memory_bytes=int(row["memory_mib"]) << 20,
            capability=(int(major), int(minor)),
            uuid=f"GPU-{i:08d}",
            bus=16 + i,
            nvlinks=18,
        )
        for i in range(int(row["count"]))
    ]
    return read_machine(WithNvml(folder, FakeNvml(boards=boards)), 4.0)


@pytest.mark.parametrize("row", index_rows(), ids=lambda row: row["id"])
def test_agrees_with_its_truth(row, recordings):
    folder = recordings(row["id"])
    expected = truth_rows(row["id"])
    if row["kind"] == "cgroup-mountinfo":
        assert not expected, "its truth is in words, see test_cgroup"
        assert detect(folder).cpu.quota is None
        return
    assert expected, f"no truth table has a row for {row['id']}"
    hardware = from_facts(expected[0][1], folder) if row["kind"] == "nvml-mock-facts" else detect(folder)
    wrong = [f"{table} {line}" for table, cells in expected for line in truth.disagreements(table, cells, hardware)]
    assert not wrong, f"{wrong}\n{hardware}"
    assert parse_hardware(convert_to_mapping(hardware)) == hardware and view.render(hardware)


@pytest.mark.skipif(not index_rows(), reason="the folder shared/hardware is not beside this repository")
@pytest.mark.parametrize("table", TABLES)
def test_no_column_is_left_out(table):
    columns = {c for c in rows_of(table)[0] if c not in EXPLAIN and not c.endswith("_as_written")}
    assert columns == truth.columns_compared(table)
