"""The interval of an estimate: what is near counts more, and rows that were left out lie inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import residuals
from generator.case.request import Request
from generator.cost import constants as c
from generator.cost.execution import Execution
from generator.cost.interval import (
    Interval,
    Kind,
    find_interval,
    find_quantile,
    load_cells,
    name_kind,
    was_generation_measured,
    weigh_cells,
    widen_unmeasured,
)
from generator.pipeline import plan_request
from generator.show.terminal import format_speed
from hwdetect import catalog

SMOL = Path(__file__).resolve().parents[2] / "examples/models/smollm2-135m.json"
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


def test_most_rows_of_a_generation_that_is_left_out_lie_inside(measured):
    """Of each, not of all together: what is planned for is one. Unwidened, fewer of V100's training and of an M2 Ultra's answers do."""
    coverage = residuals.measure_coverage(measured, "generation")["step_seconds"]
    shares = {name: inside / rows for name, (inside, rows) in coverage.items()}
    assert len(shares) >= 10 and {name: share for name, share in shares.items() if share < 0.7} == {}


@pytest.mark.parametrize(
    ("device", "mode", "factor"),
    [
        ("a100-sxm-80gb", "train", 1.0), ("rtx-4090", "train", 1.0), ("rtx-3090", "train", 1.0), ("v100-sxm-32gb", "train", 1.0),
        ("gh200-96gb", "train", 1.0), ("gtx-1080-ti", "train", c.UNMEASURED_GENERATION), ("t4", "train", c.UNMEASURED_GENERATION),
        ("b200-sxm-180gb", "train", c.UNMEASURED_GENERATION), ("gb10", "train", c.UNMEASURED_GENERATION),
        ("jetson-agx-orin-64gb", "train", c.UNMEASURED_GENERATION), ("v100-sxm-32gb", "infer", c.UNMEASURED_GENERATION),
        ("m5-pro", "infer", c.UNMEASURED_GENERATION), ("m1-pro", "infer", 1.0), ("m2-ultra", "infer", 1.0), ("m2-ultra", "train", c.UNMEASURED_MAKER),
        ("mi300x", "train", c.UNMEASURED_MAKER), ("tpu-v5e", "train", c.UNMEASURED_MAKER),
    ],
)  # fmt: skip
def test_an_interval_is_wider_where_nothing_of_the_generation_was_measured(device, mode, factor):
    """A GTX 1080 Ti had a 4090's range, and its figures were called derived."""
    board = catalog.load(device)
    plain = Interval(low=0.9, high=1.2, rows=3)
    wide = widen_unmeasured(plain, board, mode)
    assert (wide.low, wide.high) == pytest.approx((0.9 / factor, 1.2 * factor))
    assert was_generation_measured(board, mode) == (factor == 1.0)


@pytest.mark.parametrize(("device", "basis"), [("gtx-1080-ti", "assumed"), ("b200-sxm-180gb", "assumed"), ("rtx-4090", "derived")])  # fmt: skip
def test_times_of_a_generation_that_was_not_measured_are_assumed(device, basis):
    model = plan_request(Request(model=str(SMOL), hardware=device, offline=True)).plan.best.estimate
    assert {item.basis for item in model.time} <= {basis, "measured"} and model.basis == basis


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
