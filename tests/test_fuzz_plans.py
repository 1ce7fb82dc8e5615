"""`make fuzz` in small: drawn cases are plans within their limits or refusals, whatever order sets have; projects are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fuzz import is_renderable, list_models, run_case
from benchmarks.fuzz_cases import MENDED, draw_case
from benchmarks.fuzz_serving import draw_serving_case
from generator.case.request import Request

ROOT = Path(__file__).resolve().parent.parent
MODELS = list_models(None)
CHUNK = 50
SEARCHED_HERE = 0.1
"""share of the cases that are mended until something is searched (`make fuzz` has ``MENDED``): each costs half a second"""
HASHES = """
import hashlib, json, sys
from benchmarks.fuzz import list_models, run_case
from benchmarks.fuzz_cases import draw_case
for case in [draw_case(seed, list_models(None)) for seed in range(60, 80)]:
    if case.target is not None:
        continue
    outcome = run_case(case)
    text = json.dumps([outcome.kind, outcome.document])
    print(case.seed, outcome.kind, hashlib.sha256(text.encode()).hexdigest())
"""


def check_cases(seeds: range, mended: float, draw=draw_case) -> set[str]:
    """The kinds of answers; fails on any fault."""
    cases = [draw(seed, MODELS, mended) for seed in seeds]
    # a rented machine is looked for among two hundred: seconds each, and tests/test_goal.py has its own
    outcomes = [run_case(case) for case in cases if case.target is None]
    slow = "took "  # a question of the machine: `make fuzz` holds it
    faults = [(o.case.describe(), f) for o in outcomes for f in o.faults if not f.startswith(slow)]
    assert not faults
    return {outcome.kind for outcome in outcomes}


@pytest.mark.parametrize("first", range(0, 500, CHUNK))
def test_every_case_is_a_plan_or_a_refusal_that_says_what_to_do(first):
    assert {"plan", "UsageError"} <= check_cases(range(first, first + CHUNK), SEARCHED_HERE)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(500, 1000, CHUNK))
def test_cases_that_are_searched_are_plans_or_refusals(first):
    assert {"plan", "NothingFits"} <= check_cases(range(first, first + CHUNK), MENDED)


def test_a_server_is_told_what_fits_or_the_question_is_refused():
    """`python benchmarks/fuzz.py --mode infer` in small."""
    assert {"plan", "NothingFits"} <= check_cases(range(30), MENDED, draw_serving_case)


def test_limits_that_do_not_fit_are_seen(monkeypatch):
    from benchmarks import fuzz_serving
    from generator.emit.document import build_document
    from generator.emit.plan_json import to_json
    from generator.pipeline import plan_request

    asked = Request(hardware="1xrtx-4090", mode="infer", model="meta-llama/Llama-3.1-8B", concurrency=4, offline=True)
    planned = plan_request(asked)
    plan, content = planned.plan, to_json(build_document(planned, name="p"))
    assert not [*fuzz_serving.check_limits(plan, content)]
    limits = fuzz_serving.find_limits(plan)
    wrong = replace(limits, max_context=2 * limits.max_context, frontier=(*limits.frontier, (10**6, 5)))
    monkeypatch.setattr(fuzz_serving, "find_limits", lambda plan: wrong)
    faults = " ".join(fuzz_serving.check_limits(plan, content))
    assert "do not fit" in faults and "the flags say" in faults and "config.yaml says" in faults


def test_a_case_is_the_same_whatever_order_sets_have():
    def run(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-c", HASHES], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    first = run("1")
    assert first.count(" plan ") > 3 and run("2") == first


def test_faults_are_seen(monkeypatch):
    """A plan that loses its reasons, or is larger than its device, is no plan."""
    from benchmarks.fuzz import check_one_plan, check_plan, plan_request

    planned = plan_request(Request(hardware="1xt4", offline=True))
    assert not [*check_plan(planned)]
    plan = planned.plan
    silent = replace(plan, decisions=(replace(plan.decisions[0], why=""), *plan.decisions[1:]))
    assert any("no reason" in fault for fault in check_one_plan(silent))
    tight = replace(plan.best.estimate, limit_gib=plan.best.estimate.peak_memory_gib / 2)
    full = replace(plan.best)
    vars(full)["estimate"] = tight  # in the place of the one that would be computed
    assert [*check_one_plan(replace(plan, best=full))]


@pytest.mark.slow
def test_projects_are_read_by_what_reads_them():
    from benchmarks.fuzz_projects import check_project

    checked = 0
    for seed in range(1000, 1400):
        outcome = run_case(draw_case(seed, MODELS))
        if outcome.document and is_renderable(outcome.planned):
            assert not check_project(outcome.document), outcome.case.describe()
            checked += 1
        if checked == 12:
            return
    raise AssertionError(f"only {checked} projects were drawn")


def test_a_model_that_nobody_knows_is_refused_in_a_few_words(tmp_path):
    """Transformers lists the hundreds that it knows."""
    from benchmarks.fuzz import check_refusal
    from generator.errors import SourceError
    from generator.pipeline import plan_request

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "vocab_size": 512, **sizes}))
    with pytest.raises(SourceError, match="do not know 'x'") as refused:
        plan_request(Request(model=str(tmp_path), mode="infer", hardware="1xt4", offline=True))
    assert not list(check_refusal(refused.value))


def test_reasons_that_differ_by_a_name_alone_are_one(tmp_path):
    """ "sdpa would …; eager would …" in a chain of three axes took more than a message's length."""
    from benchmarks.fuzz import check_refusal
    from generator.errors import UsageError
    from generator.pipeline import plan_request

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "d.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 64))
    how = {
        "task": "sft",
        "data": str(tmp_path / "d.jsonl"),
        "seq_len": 64,
        "global_batch": 32,
        "pins": (("precision", "fp8-rowwise"),),
    }
    with pytest.raises(UsageError, match="sdpa and eager would join") as refused:
        plan_request(Request(hardware="8xrtx-5060-laptop", offline=True, **how))
    assert not list(check_refusal(refused.value))
