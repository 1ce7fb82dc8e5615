"""Published runs that no fit has seen are costed, and what perfgen is used for most is near them."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def kinds():
    sys.path.insert(0, str(BENCHMARKS))
    import held_out

    return held_out.compute_errors(*held_out.predict(held_out.TABLE))


def test_all_are_costed_but_those_that_do_not_say_which_layers_they_compute_again(kinds):
    assert sum(len(figures["costed"]) - sum(figures["costed"]) for figures in kinds.values()) == 2


@pytest.mark.parametrize(
    "kind",
    [
        "QwenLM: vLLM, served, a100-sxm-80gb",
        "QwenLM: HF Trainer, lora, one device, a100-sxm-80gb",
        "QwenLM: HF Trainer, lora on gptq, one device, a100-sxm-80gb",
        "foundation-model-stack: torch FSDP, full, several devices, a100-sxm-80gb",
    ],
)
def test_speed_is_within_a_tenth_in_the_median(kinds, kind):
    assert statistics.median(abs(ratio - 1) for ratio in kinds[kind]["speed"]) < 0.1


def test_memory_under_generate_is_within_a_twentieth_in_the_median(kinds):
    ratios = [ratio for figures in kinds.values() for ratio in figures["memory"]]
    assert len(ratios) > 150
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.05
