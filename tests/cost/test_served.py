"""Steps of served models that others published (benchmarks/served.csv), by what joins the devices and which engine ran."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.served import Figure, is_apart, list_figures, read_runs


@pytest.fixture(scope="module")
def figures() -> list[Figure]:
    return list(list_figures(read_runs()))


GROUPS = {
    "today's engine, one device": (lambda r: r["software_date"] >= "2025" and r["tp"] == "1", 0.07, 0.25),
    "today's engine, direct links": (lambda r: r["software_date"] >= "2025-02" and "-sxm" in r["device"], 0.05, 0.15),
    "its first engine, one device": (lambda r: r["software_date"] < "2024-09" and r["tp"] == "1", 0.07, 0.25),
    "its first engine, direct links": (lambda r: r["software_date"] < "2024-09" and r["tp"] != "1", 0.14, 0.35),
    "no direct links": (lambda r: "rtx-4090" in r["device"] and r["tp"] != "1", 0.25, 0.45),
}


@pytest.mark.parametrize("group", GROUPS)
def test_steps_of_served_models(figures, group):
    belongs, middle, worst = GROUPS[group]
    steps = [f for f in figures if f.row["measured"] != "first"]
    errors = [abs(f.ratio - 1) for f in steps if belongs(f.row) and not is_apart(f.row)]
    assert len(errors) >= 8
    assert statistics.median(errors) <= middle
    assert max(errors) <= worst


def test_times_to_a_first_token(figures):
    ratios = [f.ratio for f in figures if f.row["measured"] == "first" and not is_apart(f.row)]
    assert len(ratios) > 40
    assert 0.9 < statistics.median(ratios) < 1.1
    assert statistics.median(abs(x - 1) for x in ratios) < 0.1


def test_what_is_kept_apart_is_little(figures):
    assert sum(is_apart(f.row) for f in figures) <= 0.07 * len(figures)


def test_more_users_take_longer_steps(figures):
    """Of one model on one device, in the order that was measured."""
    groups: dict[tuple, list[Figure]] = {}
    for f in figures:
        if f.row["measured"] == "step":
            groups.setdefault(tuple(f.row[k] for k in ("source", "model", "device", "tp")), []).append(f)
    several = [sorted(g, key=lambda f: int(f.row["micro_batch"])) for g in groups.values() if len(g) > 2]
    assert len(several) > 10
    for members in several:
        predicted = [f.predicted for f in members]
        assert predicted == sorted(predicted)
