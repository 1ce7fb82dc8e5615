"""Compilation into CUDA graphs: planned on request, refused with the reason."""

from __future__ import annotations

import pytest
from making import H100, SMALL, T4, case, cpu_device, llama

from generator.decide.serving import plan_case
from generator.errors import NothingFits, PerfgenError
from generator.techniques.base import find_technique

MODES = ("reduce-overhead", "max-autotune")
WORK = {"task": "causal-lm", "train": "full", "from_scratch": True, "seq_len": 512, "global_batch": 16}


def plan_with(*pins: str):
    return plan_case(case(H100, llama(**SMALL), **WORK, pins=tuple(("compile", name) for name in pins)))


def sum_launches(plan) -> float:
    return sum(item.value for item in plan.best.estimate.time if item.name == "launch")


@pytest.mark.parametrize("mode", MODES)
def test_it_is_planned_where_it_is_asked_for(mode):
    plan = plan_with(mode)
    run = plan.best.execution
    assert run.compile == mode and run.accumulation == 1
    written = {a.name: a.code for a in plan.edits.training_arguments}
    assert written["torch_compile"] == "True" and written["torch_compile_mode"] == f'"{mode}"'
    assert sum_launches(plan) < sum_launches(plan_with("default")) / 10, "a pass is one launch"
    assert plan_with().best.execution.compile != mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("device", "words"), [(cpu_device(), "CUDA graphs"), (T4, "before Ampere")])
def test_it_is_refused_with_the_reason(mode, device, words):
    assert words in find_technique("compile", mode).obstacle(case(device, llama(**SMALL), **WORK))


def test_it_is_for_one_device_and_batches_of_one_length():
    for change in ({"devices": 2, "pins": (("compile", MODES[0]), ("parallelism", "ddp"))}, {"task": "sft"}):
        work = WORK | {"pins": (("compile", MODES[0]),)} | change
        with pytest.raises(PerfgenError) as refused:
            plan_case(case(H100, llama(**SMALL), **work | {"from_scratch": "task" not in change}))
        assert not isinstance(refused.value, NothingFits) or "length" in str(refused.value)
