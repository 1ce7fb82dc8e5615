"""`why` answers for every keyword that a generated project contains; `why-not` for every technique."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from generator.case.request import Request
from generator.emit.fixed import CONFIG_REASONS, list_keys, list_rows
from generator.emit.plan_document import PlanDocument
from generator.emit.plan_json import from_json
from generator.errors import UsageError
from generator.inputs.data_formats import MEANINGS
from generator.pipeline import document_request
from generator.show import why
from generator.show.terminal import build_devices_table
from generator.techniques.base import list_axes

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*/project"))
PROGRAM = {
    "add_argument",
    "ArgumentParser",
    "parse_args_into_dataclasses",
    "read_text",
    "write_text",
    "dict",
    "sorted",
    "max",
    "print",
}
"""Calls of the standard library and of argument parsers: the script's own, no knob of a library's."""


@cache
def read_example(project: Path) -> PlanDocument:
    return from_json(json.loads((project / "plan.json").read_text(encoding="utf-8")))


def list_calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call, by the last of its dotted names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node


def list_keywords(path: Path) -> set[str]:
    """Every keyword that is passed to a library."""
    own = {other.stem for other in path.parent.glob("*.py")}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in own)
    project = {alias.name for node in imports for alias in node.names}  # a function of the project beside it
    calls = (call for name, call in list_calls(path) if name not in PROGRAM | project)
    return {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_why_answers_for_every_emitted_keyword(project):
    plan = read_example(project)
    asked = ("model",) if plan.server else ("train", "infer")  # what a server shares with all others has no plan in it
    keywords = {name for path in project.glob("*.py") for name in list_keywords(path) if path.stem in asked}
    assert {"dtype", "use_safetensors"} <= keywords or (plan.server and plan.server.engine != "transformers")
    for name in keywords:
        answer = why.explain_key(plan, name)
        assert answer.why and why.format_answer(answer), name


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_why_answers_for_every_key_of_the_configuration_files(project):
    plan = read_example(project)
    keys = list_keys(yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8")))
    assert len(keys) > 5
    for path, value in keys:
        answer = why.explain_key(plan, path)
        assert answer.value == value or answer.technique, path  # `lora` is a decision too
        assert why.explain_key(plan, path.rsplit(".", 1)[-1]).why
    for name in ("accelerate.yaml", "deepspeed.json"):
        settings = yaml.safe_load((project / name).read_text(encoding="utf-8")) if (project / name).exists() else {}
        for path, value in list_keys(settings):
            assert isinstance(value, dict) or why.explain_key(plan, path).technique, path


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_why_answers_for_variables_requirements_and_decisions(project):
    plan = read_example(project)
    for name, _ in plan.edits.environment:
        assert why.explain_key(plan, name).why
    for requirement in plan.requirements:
        assert why.explain_key(plan, requirement.split("==")[0]).why
    for decision in plan.decisions:
        assert why.explain_key(plan, decision.axis).technique == f"{decision.axis}={decision.chosen}"
        assert why.explain_key(plan, f"{decision.axis}={decision.chosen}").why == decision.why
    for decision in plan.serving.decisions if plan.serving else ():
        assert why.explain_key(plan, decision.axis).why


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_what_is_explained_as_fixed_is_in_the_project(project):
    plan = read_example(project)
    code = "".join(path.read_text(encoding="utf-8") for path in project.glob("*.py"))
    for row in list_rows(plan):
        if row.place == "environment":
            assert row.name in dict(plan.edits.environment), row.name
            continue
        assert f"{row.name}=" in code or f'"{row.name}"' in code, row.name


def test_no_reason_is_for_a_key_that_no_project_has():
    keys = {
        name for project in EXAMPLES for name, _ in list_keys(yaml.safe_load((project / "config.yaml").read_text()))
    }
    assert keys <= set(CONFIG_REASONS) and set(CONFIG_REASONS) - keys <= {
        *("tokenizer", "adapter", "lora.use_dora", "lora.use_rslora", "draft_model", "draft_revision"),
        *("serving.proposed_tokens", "serving.step"),
        *("rows", "rows.batch", "rows.positions", "rows.weights", "processes.expected.divided"),
        *(name for name in CONFIG_REASONS if name.startswith("serving.flags.")),  # of engines that no example has
        *(f"columns.{name}" for name in MEANINGS),
    }


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_why_not_agrees_with_the_plan(project):
    plan = read_example(project)
    for decision in plan.decisions:
        for rejected in decision.rejected:
            assert why.explain_rejection(plan, f"{decision.axis}={rejected.name}").why == rejected.why
        assert why.explain_rejection(plan, f"{decision.axis}={decision.chosen}").taken
    for axis in list_axes():
        for technique in axis.members:
            assert why.explain_rejection(plan, technique.id).why


def test_the_batch_split_is_explained_by_the_other_splits():
    plan = read_example(EXAMPLES[0])
    answer = why.explain_key(plan, "per_device_train_batch_size")
    assert answer.value == plan.batch.micro_batch and answer.rejected


def test_devices_are_explained_by_what_other_numbers_of_them_give():
    plan = next(p for p in map(read_example, EXAMPLES) if p.layout.nodes > 1)
    assert why.explain_key(plan, "nnodes").value == plan.layout.nodes
    assert why.explain_key(plan, "devices").value == plan.layout.devices
    assert len(why.explain_key(plan, "devices").rejected) == len(plan.devices) - 1


def test_what_a_server_computes_are_answers():
    """And no steps, in the terminal's words and in PLAN.md."""
    project = next(p for p in EXAMPLES if p.parent.name == "h100-x8-70b-serve")
    plan = read_example(project)
    fitting = [other for other in why.explain_key(plan, "devices").rejected if other.cost]
    assert fitting and all("s an answer" in other.why and "per 1,000 answers" in other.why for other in fitting)
    table = (project / "PLAN.md").read_text().split("## Devices")[1]
    assert table.count("per 1,000 answers") == len(fitting) + 1 and "step" not in table.split("##")[0]


def test_processes_on_cpus_have_no_column_of_hours():
    """Nobody counts the hours of a CPU: the column had none in it."""
    project = next(p for p in EXAMPLES if p.parent.name == "cpu-2x4-135m-full")
    table = (project / "PLAN.md").read_text().split("## Devices")[1].split("##")[0].strip().splitlines()
    assert len({line.count("|") for line in table}) == 1 and "hours" not in table[0]
    shown = build_devices_table(read_example(project))
    assert not any("hours" in str(column.header) for column in shown.columns)
    gpus = build_devices_table(read_example(next(p for p in EXAMPLES if p.parent.name == "a100-x8-70b-full")))
    assert len(gpus.columns) == len(shown.columns) + 1


def test_a_default_is_called_one():
    """A default says where it comes from, under its name in config.yaml too; what was given says by which option."""
    plan = next(p for p in map(read_example, EXAMPLES) if p.project.name == "rtx-4090-8b-lora")
    for key in ("learning_rate", "training.learning_rate"):
        assert why.explain_key(plan, key).why.startswith("default: ten times that of full fine-tuning")
        assert why.explain_key(plan, key).value == plan.config.training.learning_rate
    assert why.explain_key(plan, "seq_len").why == "yours (--seq-len): perfgen never changes it"
    assert "your global batch of 32" in why.explain_key(plan, "batch").why


def test_what_is_unknown_gets_a_suggestion():
    plan = read_example(EXAMPLES[0])
    with pytest.raises(UsageError, match="did you mean optim"):
        why.explain_key(plan, "optimm")
    with pytest.raises(UsageError, match="lion-8bit"):
        why.explain_rejection(plan, "lion")


def test_what_nobody_gave_is_not_called_yours():
    document = document_request(Request(hardware="cpu:4", global_batch=4))
    keys = [
        "training.eval_steps",
        "eval_rows",
        "report_to",
        "logging_steps",
        "lr_scheduler_type",
        "skip_bad",
        "eval_data",
    ]
    for key in (*keys, "eval_on_start", "load_best_model_at_end", "weight_decay"):
        answer = why.explain_key(document, key)
        assert "yours" not in answer.why.replace("yours to change", ""), (key, answer.why)
    assert "here it takes" in why.explain_key(document, "training.eval_steps").why
    assert why.explain_key(document, "weight_decay").why.count("change") == 1


def test_what_is_paid_once_is_not_weighed_against_a_number_of_steps_that_nobody_knows(tmp_path):
    """Such a rival is left out for what it adds; "which None steps do not earn back" was said of it."""
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
    config.write_text(json.dumps({"model_type": "qwen3", "num_key_value_heads": 8, "vocab_size": 151936, **sizes}))
    document = document_request(Request(model=str(config), hardware="mi300x", train="full"))
    whys = [rejected.why for decision in document.decisions for rejected in decision.rejected]
    assert any("not worth another setting" in why for why in whys)
    assert not any("None" in why for why in whys)
