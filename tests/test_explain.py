"""`why` answers for every keyword that a generated project contains; `why-not` for every technique."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from test_contract import keywords

from generator.errors import UsageError
from generator.show import why
from generator.techniques.base import list_axes

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*/project"))
CALLS = ("set_defaults", "from_pretrained", "from_config", "generate")


def document(project: Path) -> dict:
    return json.loads((project / "plan.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_why_answers_for_every_emitted_keyword(project):
    plan = document(project)
    for path in ("train.py", "infer.py"):
        found = keywords(ast.parse((project / path).read_text(encoding="utf-8")))
        for name in set().union(*(found.get(call, set()) for call in CALLS)):
            said = why.explain_key(plan, name)
            assert said["why"] and why.format_answer(said), name
    for name, _ in plan["edits"]["environment"]:
        assert why.explain_key(plan, name)["why"]


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_why_not_agrees_with_the_plan(project):
    plan = document(project)
    for decision in plan["decisions"]:
        for rejected in decision["rejected"]:
            assert why.explain_rejection(plan, f"{decision['axis']}={rejected['name']}")["why"] == rejected["why"]
        assert why.explain_rejection(plan, f"{decision['axis']}={decision['chosen']}")["taken"]
    for axis in list_axes():
        for technique in axis.members:
            assert why.explain_rejection(plan, technique.id)["why"]


def test_the_batch_split_is_explained_by_the_other_splits():
    plan = document(EXAMPLES[0])
    said = why.explain_key(plan, "per_device_train_batch_size")
    assert said["value"] == plan["batch"]["micro_batch"] and said["rejected"]


def test_what_is_unknown_gets_a_suggestion():
    plan = document(EXAMPLES[0])
    with pytest.raises(UsageError, match="did you mean optim"):
        why.explain_key(plan, "optimm")
    with pytest.raises(UsageError, match="lion-8bit"):
        why.explain_rejection(plan, "lion")
