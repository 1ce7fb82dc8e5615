"""Two plans compared in words: what a person wants to know first, with reasons that the plans themselves give."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from generator.emit.changes import PARTS, compare_plans, format_changes

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*/project/plan.json"))


def read(name: str) -> dict:
    return json.loads((ROOT / "examples" / name / "project" / "plan.json").read_text(encoding="utf-8"))


@pytest.fixture
def plan() -> dict:
    return read("rtx-4090-8b-lora")


def change(plan: dict, path: str, value: object) -> dict:
    plan = copy.deepcopy(plan)
    *parents, last = path.split(".")
    part = plan
    for key in parents:
        part = part[int(key)] if isinstance(part, list) else part[key]
    part[last] = value
    return plan


def say(old: dict, new: dict) -> list[str]:
    return [str(change) for change in compare_plans(old, new)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.parent.name)
def test_a_plan_does_not_differ_from_itself(path):
    plan = json.loads(path.read_text(encoding="utf-8"))
    assert compare_plans(plan, copy.deepcopy(plan)) == ()


def test_any_two_plans_of_the_golden_record_can_be_compared():
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in EXAMPLES]
    for old in plans:
        for new in plans:
            changes = compare_plans(old, new)
            assert (old is new) == (changes == ())
            assert all(isinstance(line, str) and "\n" not in line for line in format_changes(changes))


def test_less_memory_and_a_smaller_micro_batch(plan):
    micro_batch, limit = plan["batch"]["micro_batch"], plan["estimate"]["limit_gib"]
    new = change(change(plan, "batch.micro_batch", 4 * micro_batch), "estimate.limit_gib", limit - 3)
    split = {
        "micro_batch": micro_batch,
        "accumulation": 1,
        "fits": False,
        "peak_memory_gib": limit,
        "step_seconds": 1.0,
    }
    new["batch"]["splits"] = [split | {"tokens_per_second": 1.0}]
    text = f"micro-batch {micro_batch} → {4 * micro_batch}: 3 GiB less are usable; {micro_batch} would need {limit:.1f} GiB"
    assert say(plan, new) == [f"usable memory {limit:.1f} → {limit - 3:.1f} GiB", text]


def test_a_choice_comes_with_what_the_new_plan_says_of_the_old_one(plan):
    decision = next(d for d in plan["decisions"] if d["rejected"])
    rejected = decision["rejected"][0]
    old = change(plan, f"choice.{decision['axis']}", rejected["name"])
    assert say(old, plan) == [
        f"{decision['axis']} {rejected['name']} → {decision['chosen']}: {rejected['name']}: {rejected['why']}"
    ]


def test_a_default_says_where_it_comes_from_and_a_given_value_its_option(plan):
    name = next(name for name in plan["defaults"] if isinstance(plan["yours"].get(name), float))
    (line,) = say(change(plan, f"yours.{name}", 0.5), plan)
    assert line.endswith(f": a default: {plan['defaults'][name]}") and line.startswith(f"{name} 0.5 → ")
    new = change(plan, "yours.seq_len", 64)
    new["defaults"].pop("seq_len", None)
    assert "seq_len" in say(plan, new)[0] and say(plan, new)[0].endswith("→ 64: --seq-len")


def test_versions_configuration_and_notes(plan):
    new = change(
        plan, "requirements", [*(r for r in plan["requirements"] if "torch==" not in r), "torch==9.0", "new-one==1"]
    )
    new = change(
        change(new, "config.training.logging_steps", 7), "notes", [*plan["notes"], {"kind": "data", "text": "look"}]
    )
    lines = say(change(plan, "perfgen", "0.0.9"), new)
    torch = next(r for r in plan["requirements"] if r.startswith("torch==")).removeprefix("torch==")
    assert lines == [
        f"perfgen 0.0.9 → {plan['perfgen']}: rules, numbers and template may be others",
        "new-one: new, 1",
        f"torch {torch} → 9.0",
        "config.yaml: training.logging_steps 1 → 7",
        "note: new, look",
    ]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", [None, 3, [], {}, [3], {"x": "y"}])
def test_a_plan_of_another_version_is_compared_as_far_as_it_can_be_read(plan, part, value):
    if part not in plan:
        pytest.skip("this plan has no such part")
    assert compare_plans({**plan, part: value}, plan) is not None
    assert compare_plans({k: v for k, v in plan.items() if k != part}, plan) is not None


def test_parts_that_cannot_be_read_are_named(plan):
    (line,) = say({**plan, "batch": {"micro": 1}}, plan)
    assert line.startswith("plan.json: new, batch of the old plan: written by another version")


def test_every_value_that_was_asked_for_is_named_with_its_option(plan):
    def give(plan: dict, name: str, value: object) -> dict:
        return change(change(plan, f"case.workload.{name}.value", value), f"case.workload.{name}.from", "given")

    assert say(plan, give(plan, "packing", False)) == ["packing yes → no: --no-packing"]
    assert say(plan, give(plan, "new_tokens", 512)) == ["new_tokens 128 → 512: --new-tokens"]
    alpha = change(plan, "yours.lora_alpha", 64)
    del alpha["defaults"]["lora_alpha"]
    assert say(plan, alpha)[0] == "lora_alpha 32 → 64: --lora-rank", "there is no --lora-alpha"


def test_what_another_mode_brings_is_not_said_of_lengths():
    """`update --mode infer` explained a dropped optimizer by "sequences of 2,048 tokens instead of 512"."""
    reasons = say(read("rtx-4090-8b-lora"), read("rtx-4090-8b-serve"))
    (optimizer,) = (line for line in reasons if "optimizer:" in line)
    assert optimizer.endswith("mode infer instead of train")
    assert not any("tokens instead of" in line for line in reasons)
