"""The interval of an estimate: what is near counts more, and rows that were left out lie inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import residuals
from generator.cost.execution import Execution
from generator.cost.interval import Kind, find_interval, find_quantile, load_cells, name_kind, weigh_cells
from generator.show.terminal import format_speed
from hwdetect import catalog

MEASURED = Path(__file__).resolve().parents[2] / "../shared/measured"
KIND = Kind(device="a", family="f", mode="train", form="full", bits=16, spread="one", compiled=False)


def test_one_kind_alone_gives_its_own_quantiles():
    interval = weigh_cells(KIND, ((KIND, 50, (0.8, 0.9, 1.0, 1.1, 1.2)),))
    assert (interval.low, interval.high, interval.rows) == (0.8, 1.2, 50)


def test_what_differs_more_counts_less():
    far = replace(KIND, device="b", family="g", form="lora", spread="nodes")
    near = (KIND, 5, (0.9, 0.95, 1.0, 1.05, 1.1))
    beside = weigh_cells(KIND, (near, (far, 5, (3.0,) * 5)))
    assert beside.high == 1.1
    assert weigh_cells(far, (near, (far, 5, (3.0,) * 5))).high == 3.0


def test_training_says_nothing_of_inference():
    assert weigh_cells(replace(KIND, mode="infer"), ((KIND, 5, (1.0,) * 5),)) is None


def test_a_quantile_is_of_the_weight():
    assert find_quantile([(1.0, 1.0), (2.0, 8.0), (3.0, 1.0)], 0.5) == 2.0
    assert find_quantile([(3.0, 1.0), (1.0, 1.0)], 1.0) == 3.0


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "t4", "b200-sxm-180gb", "mi300x"])
@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("quantity", ["step_seconds", "allocator_peak"])
def test_every_device_has_an_interval_about_its_estimate(device, mode, quantity):
    interval = find_interval(quantity, name_kind(catalog.load(device), Execution(mode=mode)))
    assert 0.2 < interval.low <= 1.05 and 0.99 <= interval.high < 5.0


def test_rows_of_the_very_kind_are_counted():
    run = Execution(weights_dtype="bfloat16", train="lora", lora_rank=16, quant="nf4")
    a100, t4 = (find_interval("step_seconds", name_kind(catalog.load(d), run)) for d in ("a100-sxm-80gb", "t4"))
    assert a100.rows > 50 and t4.rows == 0


@pytest.fixture(scope="module")
def measured() -> list[residuals.Residual]:
    if not MEASURED.is_dir():
        pytest.skip("no published measurements here (../shared/measured)")
    return list(residuals.list_residuals(MEASURED))


def test_the_file_is_that_of_this_cost_model(measured):
    assert residuals.format_cells(residuals.collect_cells(measured)) == residuals.OUT.read_text(encoding="utf-8"), (
        "the cost model moved: python benchmarks/residuals.py ../shared/measured --write"
    )
    assert {kind for cells in load_cells().values() for kind, _, _ in cells} == {residual.kind for residual in measured}


@pytest.mark.parametrize("part", ["table", "device"])
def test_most_rows_that_are_left_out_lie_inside(measured, part):
    for parts in residuals.measure_coverage(measured, part).values():
        inside, rows = (sum(counts[place] for counts in parts.values()) for place in (0, 1))
        assert 0.7 <= inside / rows <= 0.9


@pytest.mark.parametrize(
    ("seconds", "words"),
    [((1.2, 0.9, 1.7), "1.2 s (0.9–1.7) a step"), ((810, 675, 1693.4), "810 s (675–1,693) a step")],
)
def test_a_range_is_written_as_people_write_it(seconds, words):
    """810 s (675–1.69e+03), before."""
    names = ("step_seconds", "step_seconds_p10", "step_seconds_p90")
    estimate = SimpleNamespace(**dict(zip(names, seconds, strict=True)), tokens_per_second=100.0, basis="derived")
    document = SimpleNamespace(estimate=estimate, project=SimpleNamespace(mode="train"))
    assert words in format_speed(document)
