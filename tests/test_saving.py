"""How often a project saves: by time, by what a save costs, and never more rarely than the run is long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import H100, case, cost, llama

from generator.case.request import Request
from generator.case.saving import (
    INTERVAL_SECONDS,
    LEAST_GRACE_SECONDS,
    LONGEST_SECONDS,
    STEP_SECONDS,
    choose_grace_seconds,
    choose_save_steps,
    compute_save_seconds,
    read_disk_rate,
)
from generator.decide.plan import decide
from generator.emit.saving import BY_EVALUATION, BY_TIME, describe_saving
from generator.pipeline import document_request
from hwdetect.types import Cpu, Disk, Hardware

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"


@pytest.mark.parametrize(
    ("step_seconds", "steps", "save_seconds", "expected"),
    [
        (30.0, None, 1.0, 50),  # 25 minutes
        (30.0, 148, 1.0, 50),  # 74 minutes: three parts, the last saved by the Trainer
        (0.5, 60, 0.1, 60),  # half a minute: the end is enough
        (31.7, None, 112.0, 68),  # 35 minutes, so that saves take a twentieth
        (108.0, 148, 990.0, 74),  # a save of a quarter of an hour, and never more than two hours without one
        (90_000.0, 3, 1.0, 1),  # a step longer than any interval
    ],
)
def test_the_interval_follows_time_and_what_a_save_costs(step_seconds, steps, save_seconds, expected):
    assert choose_save_steps(step_seconds, steps, save_seconds) == expected


@given(st.floats(1e-3, 1e4), st.one_of(st.none(), st.integers(1, 10**6)), st.floats(0, 1e4))
def test_an_interval_is_within_the_run_and_the_longest(step_seconds, steps, save_seconds):
    chosen = choose_save_steps(step_seconds, steps, save_seconds)
    assert 1 <= chosen <= (steps or chosen)
    # half more than the longest interval where steps are divided evenly, then up to the next step
    assert chosen * step_seconds <= 1.5 * LONGEST_SECONDS + 2 * step_seconds
    if steps is None:
        assert chosen * step_seconds >= min(INTERVAL_SECONDS, LONGEST_SECONDS) * 0.999


def test_the_last_save_gets_the_time_that_its_bytes_take():
    """14 bytes of 70e9 parameters: 600 s would do at 1.65 GB/s and more only."""
    seconds = choose_grace_seconds(14 * 70e9 / 1e9)
    assert seconds >= STEP_SECONDS + 980 and seconds % 60 == 0
    assert choose_grace_seconds(1.0) == LEAST_GRACE_SECONDS


def test_a_save_ends_with_the_hashes_of_its_seal():
    """Each node those of what it wrote, on all its cores. A save of 1.61 GB on one core: 0.91 CPU seconds of hash_files."""
    one = Hardware(cpu=Cpu(budget=1), disks=(Disk(role="work", kind="nvme"),))
    assert compute_save_seconds(1.61e9, one, 1) - 1.61e9 / 1.5e9 == pytest.approx(0.91, rel=0.05)
    many = replace(one, cpu=Cpu(budget=64))
    hashes = [compute_save_seconds(1e12, many, nodes) - 1e12 / 1.5e9 for nodes in (1, 4)]
    assert hashes == pytest.approx([1e12 / (16 * 1.8e9), 1e12 / (64 * 1.8e9)])
    assert compute_save_seconds(1e9, Hardware(), 1) == pytest.approx(1 + 1 / 1.8)  # nothing known: one core
    pins = (("parallelism", "tensor-fsdp2"),)
    of = case(H100, llama(hidden=8192, layers=80, heads=64, ffn=28672), devices=8, nodes=4, host_gib=2048, pins=pins)
    plan = decide(of, cost(of))
    saving = describe_saving(plan)
    assert str(saving.grace_seconds) in plan.edits.launcher  # torchrun's --shutdown-timeout
    nodes = plan.best.layout.nodes
    assert nodes > 1
    expected = compute_save_seconds(saving.checkpoint_gib * 2**30, of.hardware, nodes)
    assert saving.save_seconds == pytest.approx(expected, rel=1e-3)


def test_the_launcher_waits_as_long_as_the_plan_says():
    """Two formulas once gave the launcher 2,040 s and Docker, Slurm and PLAN.md 1,620 s for the same save."""
    pins = (("parallelism", "fsdp2"), ("offload", "all-cpu"))
    big = llama(hidden=8192, layers=80, heads=64, ffn=28672)
    of = case(H100, big, devices=8, host_gib=2048, pins=pins)
    plan = decide(of, cost(of))
    grace = describe_saving(plan).grace_seconds
    assert grace > LEAST_GRACE_SECONDS
    assert dict(plan.edits.environment)["PET_SHUTDOWN_TIMEOUT"] == str(grace)


def test_the_reason_is_the_one_that_decided():
    """An interval that the evaluation chose was said to come from what an interruption may cost."""
    of = case(H100, steps=60)
    plan = decide(of, cost(of))
    by_time = describe_saving(plan)
    assert by_time.why == describe_saving(plan, by_time.save_steps).why == BY_TIME
    assert describe_saving(plan, 8).save_steps == 8 and describe_saving(plan, 8).why == BY_EVALUATION


def test_weights_alone_are_not_saved_for_an_evaluation():
    """A model that is sharded at load has no checkpoint to come back to: the best one cannot be kept."""
    eight = {"hardware": "8xh100-sxm-80gb", "pins": (("parallelism", "fsdp2-at-load"),)}
    of = {"model": "meta-llama/Llama-3.1-8B", "config": str(MODELS / "llama-3.1-8b.json"), "offline": True}
    document = document_request(Request(**of, **eight, data="owner/chats", task="sft", max_steps=200))
    assert document.evaluation.interval == 25 and not document.evaluation.keeps_best
    assert document.saving.save_steps == 200 and document.saving.why == BY_TIME


def test_the_rate_is_that_of_the_folder_of_the_runs():
    disks = (
        Disk(role="cache", kind="hdd"),
        Disk(role="work", kind="nvme", read_bytes_per_s=0.4e9),
    )
    assert read_disk_rate(Hardware(disks=disks))[0] == 0.4e9
    assert read_disk_rate(Hardware(disks=(Disk(role="work", kind="nvme", read_bytes_per_s=9e9),)))[0] < 3e9
    rate, basis = read_disk_rate(Hardware(disks=()))
    assert rate > 0 and "assumed" in basis
