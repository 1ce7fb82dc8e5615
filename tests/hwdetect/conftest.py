"""Recordings of real machines, laid out once per test run from the folder ``shared`` beside the repository."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "../shared/hardware"


def index_rows() -> list[dict[str, str]]:
    """The rows of INDEX.csv; empty where the folder is absent."""
    if not (SHARED / "INDEX.csv").exists():
        return []
    with (SHARED / "INDEX.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """A function from a recording's id to its folder."""
    rows = {row["id"]: row for row in index_rows()}
    if not rows:
        pytest.skip("the folder shared/hardware is not beside this repository")
    spec = importlib.util.spec_from_file_location("recordings_layout", SHARED / "layout.py")
    layout = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layout)
    top = tmp_path_factory.mktemp("recordings")

    def folder(name: str) -> Path:
        place = top / name
        if not place.exists():
            layout.lay_out(rows[name]["kind"], SHARED / rows[name]["file"], place)
        return place

    return folder
