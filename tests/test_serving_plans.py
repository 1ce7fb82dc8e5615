"""Plans for inference: the engine that is chosen, what its server is told, and what ends the lengths that it takes."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from generator.case.request import Request
from generator.decide.limits import fits
from generator.emit.plan_document import PlanDocument
from generator.emit.plan_json import to_json
from generator.errors import NothingFits, UsageError
from generator.pipeline import document_request, plan_request
from generator.techniques.base import list_axes
from generator.techniques.engines import Engine

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "examples" / "models"
ENGINES = [t for axis in list_axes() for t in axis.members if isinstance(t, Engine)]


def plan_8b(**told) -> PlanDocument:
    return document_request(Request(model=str(MODELS / "llama-3.1-8b.json"), mode="infer", **told))


def plan_70b(**told) -> PlanDocument:
    return document_request(Request(model=str(MODELS / "llama-3.1-70b.json"), mode="infer", **told))


def test_a_server_for_many_is_vllm_over_all_devices_that_it_needs():
    document = plan_70b(hardware="8xh100-sxm-80gb", concurrency=64)
    flags = document.config.serving.flags
    assert document.choice["engine"] == "vllm" and document.choice["parallelism"] == "served"
    assert flags["tensor-parallel-size"] * flags.get("data-parallel-size", 1) == document.layout.devices
    assert flags["max-num-seqs"] * flags.get("data-parallel-size", 1) >= 64
    assert flags["max-model-len"] >= 2048 + 128
    assert flags["max-num-queued-reqs"] == 64 + document.config.serving.max_waiting


def test_several_nodes_hold_one_model_that_one_cannot():
    document = plan_70b(hardware="4x1xh100-sxm-80gb")
    flags = document.config.serving.flags
    assert (flags["nnodes"], flags["pipeline-parallel-size"]) == (document.layout.nodes, document.layout.pp)
    assert "serve.k8s.yaml" not in document.files


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_an_engine_has_its_environments_and_its_leaf(engine):
    fragments = ROOT / "templates" / "fragments"
    assert (fragments / "engines" / f"{engine.leaf}.py").is_file()
    assert not engine.conversion or (fragments / "conversions" / f"{engine.leaf}.py").is_file()
    assert not engine.command or (fragments / "serving" / f"launch_{engine.leaf}.py").is_file()


@pytest.mark.parametrize(
    ("hardware", "concurrency"),
    [("1xrtx-4090", 1), ("1xh100-sxm-80gb", 1), ("1xh100-sxm-80gb", 64), ("cpu:16,64gb", 1), ("cpu:16,64gb", 8)],
)
def test_the_longest_context_fits_and_the_next_does_not(hardware, concurrency):
    request = Request(model=str(MODELS / "llama-3.1-8b.json"), mode="infer", hardware=hardware, concurrency=concurrency)
    plan, serving = plan_request(request).plan, document_request(request).config.serving
    run, cost = plan.best.execution, plan.best.cost
    assert fits(cost, run, serving.max_context, run.micro_batch)
    most = plan.case.model.max_positions
    assert serving.max_context == most or not fits(cost, run, serving.max_context + 256, run.micro_batch)


def test_the_frontier_falls():
    rows = plan_8b(hardware="1xh100-sxm-80gb", concurrency=8).server.frontier
    assert [row.sequences for row in rows] == sorted((row.sequences for row in rows), reverse=True)
    assert [row.context for row in rows] == sorted(row.context for row in rows)


def test_goals():
    each = {
        goal: plan_8b(hardware="8xh100-sxm-80gb", concurrency=64, optimize_for=goal)
        for goal in ("efficiency", "latency", "throughput", "memory")
    }
    seconds = {goal: document.estimate.step_seconds for goal, document in each.items()}
    memory = {goal: d.estimate.peak_memory_gib * d.layout.devices for goal, d in each.items()}
    assert min(seconds.values()) == seconds["latency"] == seconds["throughput"]
    assert min(memory.values()) == memory["memory"]
    assert plan_8b(hardware="1xh100-sxm-80gb", optimize_for="throughput").config.serving.max_concurrency == 64


def test_an_answer_that_takes_too_long_is_refused_or_gets_more_devices():
    slow = plan_8b(hardware="8xh100-sxm-80gb", optimize_for="memory", concurrency=8)
    soon = plan_8b(
        hardware="8xh100-sxm-80gb", concurrency=8, max_latency=slow.estimate.step_seconds / 2, optimize_for="efficiency"
    )
    assert soon.estimate.step_seconds <= slow.estimate.step_seconds / 2
    with pytest.raises(NothingFits, match="no plan answers within"):
        plan_8b(hardware="8xh100-sxm-80gb", max_latency=0.01)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"mode": "train", "prompt_tokens": 5}, "--prompt-tokens is for answers"),
        ({"mode": "train", "max_latency": 5.0}, "--max-latency is for answers"),
        ({"mode": "infer", "prompt_tokens": 5, "seq_len": 6}, "the same thing"),
        ({"mode": "infer", "optimize_for": "time"}, "is not for --mode infer"),
    ],
)
def test_what_contradicts_itself(told, words):
    with pytest.raises(UsageError, match=words):
        plan_request(Request(model=str(MODELS / "llama-3.1-8b.json"), hardware="cpu:4", **told))


def test_prompt_tokens_are_the_length_and_called_given():
    document = plan_8b(hardware="1xh100-sxm-80gb", prompt_tokens=777)
    length = document.case.workload.seq_len
    assert (length.value, length.from_, length.why) == (777, "given", "--prompt-tokens")
    assert document.config.serving.prompt_tokens == 777


def test_what_is_allowed_is_taken_where_it_is_faster():
    """Four bits on a CPU, eight on a board that has them: only with the user's word."""
    for hardware, name in (("cpu:16,64gb", "int4"), ("1xh100-sxm-80gb", "fp8")):
        assert plan_8b(hardware=hardware).choice["quantization"] == "none"
        document = plan_8b(hardware=hardware, allow=(f"quantization={name}",))
        assert document.choice["quantization"] == name
        assert document.config.serving.weights == name


def test_kubernetes_gets_what_the_plan_uses():
    document = plan_70b(hardware="8xh100-sxm-80gb", concurrency=64)
    claim, deployment, service = yaml.safe_load_all(document.files["serve.k8s.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    assert claim["kind"] == "PersistentVolumeClaim"
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == document.layout.devices
    assert pod["terminationGracePeriodSeconds"] > document.server.grace_seconds
    assert service["spec"]["ports"][0]["port"] == document.config.serving.port


def test_a_training_project_answers_by_transformers():
    plan = plan_request(Request(hardware="1xh100-sxm-80gb", global_batch=4)).plan
    assert plan.serving.best.choice["engine"] == "transformers"
    assert "server" not in to_json(document_request(Request(hardware="1xh100-sxm-80gb", global_batch=4)))


def test_a_classifier_has_no_server():
    classifier = Request(
        model=str(MODELS / "bert-base.json"), tokenizer="owner/name", mode="infer", task="text-classification"
    )
    document = document_request(replace(classifier, hardware="cpu:4"))
    assert document.choice["engine"] == "transformers" and "server" not in to_json(document)
    assert "datasets" in document.versions


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_every_module_that_a_project_imports_is_in_it(engine):
    """And nothing but them comes from elsewhere than its environment."""
    hardware = "1xh100-sxm-80gb" if engine.command else "cpu:16,64gb"
    document = plan_8b(hardware=hardware, concurrency=4, pins=(("engine", engine.name),))
    fragments, made = ROOT / "templates" / "fragments", {"model"}
    known = {path.stem for path in fragments.rglob("*.py")} | {"engine", "server", "batch_work", "machine", *made}
    for name, leaf in document.modules.items():
        tree = ast.parse((fragments / f"{leaf}.py").read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        ours = (imported & known) - {"json", "csv", "transformers", "vllm", "sglang", "openvino_genai"}
        assert ours <= {*document.modules, *made}, (name, ours - {*document.modules})
