"""Plans for inference: the engine that is chosen, what its server is told, and what ends the lengths that it takes."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from generator.case.request import Request
from generator.decide import plan
from generator.decide.limits import find_limits, fits
from generator.decide.plan import plan_space
from generator.decide.space import SEARCH_QUESTIONS
from generator.emit.asked import record_request
from generator.emit.packing import describe_place, list_next_steps, pack_project
from generator.emit.plan_document import PlanDocument
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.emit.requirements import dump_pyproject
from generator.errors import NothingFits, PerfgenError, UsageError
from generator.pipeline import document_request, plan_request
from generator.techniques.engines import list_engines
from hwdetect.catalog import list_devices

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "examples" / "models"
ENGINES = list_engines()


def plan_8b(**told) -> PlanDocument:
    return document_request(Request(model=str(MODELS / "llama-3.1-8b.json"), mode="infer", **told))


def plan_70b(**told) -> PlanDocument:
    return document_request(Request(model=str(MODELS / "llama-3.1-70b.json"), mode="infer", **told))


def test_sizes_alone_are_planned_as_the_weights_that_they_are_of():
    """They were refused 4 bits, for "there are no trained weights to quantize", and a device on which the model fits."""
    sizes = str(MODELS / "llama-3.1-70b.json")
    asked = {"mode": "infer", "hardware": "1xl40s", "offline": True}
    alone = document_request(Request(model=sizes, **asked))
    named = document_request(Request(model="meta-llama/Llama-3.1-70B", config=sizes, **asked))
    assert alone.choice == named.choice and alone.choice["quantization"] == "bnb-nf4"
    for field in ("memory_gib", "peak_memory_gib", "step_seconds"):
        assert getattr(alone.estimate, field) == getattr(named.estimate, field)


def test_a_server_for_many_is_vllm_over_all_devices_that_it_needs():
    document = plan_70b(hardware="8xh100-sxm-80gb", concurrency=64)
    flags = document.config.serving.flags
    assert document.choice["engine"] == "vllm" and document.choice["parallelism"] == "served"
    assert flags["tensor-parallel-size"] * flags.get("data-parallel-size", 1) == document.layout.devices
    assert flags["max-num-seqs"] * flags.get("data-parallel-size", 1) >= 64
    assert flags["max-model-len"] >= 2048 + 128
    # each copy has a process that speaks HTTP (vllm/entrypoints/cli/serve.py, api_server_count), which counts its own requests
    assert flags["max-num-queued-reqs"] * flags["data-parallel-size"] == 64 + document.config.serving.max_waiting


def test_requests_that_copies_on_several_nodes_take_are_no_more_than_those_of_one():
    """Each of sixteen processes that speak HTTP took as many as all of them together should."""
    asked = {"hardware": "2x8xh100-sxm-80gb", "concurrency": 512, "optimize_for": "throughput"}
    serving = plan_8b(**asked).config.serving
    assert serving.flags["data-parallel-size"] == 16
    assert serving.flags["max-num-queued-reqs"] == (512 + serving.max_waiting) / 16


def test_a_server_for_a_machine_that_is_not_known_is_written(tmp_path):
    """It ended in a traceback of Jinja where the cache of its limits takes more than the planned lengths."""
    model = str(MODELS / "smollm2-135m.json")
    document = document_request(Request(model=model, mode="infer", hardware="portable", concurrency=8))
    assert document.config.predicted.peak_memory_gib > document.estimate.peak_memory_gib + 0.05
    render(to_json(document), tmp_path / "p")
    assert "of each device" not in (tmp_path / "p" / "PLAN.md").read_text()


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


@pytest.mark.parametrize("engine", [e for e in ENGINES if e.command], ids=lambda e: e.name)
def test_every_flag_of_a_server_has_its_reason_and_no_other(engine):
    limits = find_limits(plan_request(Request(hardware="1xh100-sxm-80gb", mode="infer")).plan)
    flags = {*engine.list_flags(limits, SimpleNamespace(tp=2, pp=2, nodes=2, replicate=2), "bfloat16", "fp8")}
    flags |= {*engine.list_cache_flags("float8"), *engine.list_adapter_flags(8)}
    assert flags | {*engine.list_lookup_flags(4), *engine.list_draft_flags(4)} == set(engine.flag_reasons)


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


@pytest.mark.parametrize(
    ("hardware", "told"),
    [
        ("1xrtx-4090", {"pins": (("engine", "transformers"),)}),
        ("1xrtx-4090", {}),
        ("8xh100-sxm-80gb", {"concurrency": 64}),
        ("1xh100-sxm-80gb", {"concurrency": 8, "pins": (("engine", "sglang"),)}),
        ("cpu:16,64gb", {"concurrency": 8, "allow": ("quantization=int4",)}),
    ],
)
def test_what_the_server_takes_stands_in_the_frontier_and_in_its_flags(hardware, told):
    """The frontier has what the server takes, its row there holds all that are served, and the engine is told the same."""
    document = plan_8b(hardware=hardware, **told)
    serving, rows = document.config.serving, {row.context: row.sequences for row in document.server.frontier}
    assert rows[serving.max_context] >= serving.max_concurrency
    assert all(n < serving.max_concurrency for context, n in rows.items() if context > serving.max_context)
    if not serving.flags:
        return
    flags = {name.replace("_", "-"): value for name, value in serving.flags.items()}
    copies = flags.get("data-parallel-size", 1) if "max-num-seqs" in flags else 1
    assert serving.max_context == flags.get("max-model-len", flags.get("context-length"))
    each = flags.get("max-num-seqs", flags.get("max-running-requests"))
    assert each == -(-serving.max_concurrency // copies)


def test_the_frontier_falls():
    rows = plan_8b(hardware="1xh100-sxm-80gb", concurrency=8).server.frontier
    assert [row.sequences for row in rows] == sorted((row.sequences for row in rows), reverse=True)
    assert [row.context for row in rows] == sorted(row.context for row in rows)


def test_a_model_without_positions_is_served_as_far_as_was_asked(tmp_path):
    """The frontier ended at 131,072 tokens, and 135,168 were planned (seed 512098 of the fuzz)."""
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "n_layer": 8, "vocab_size": 32000, "model_type": "bloom"}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"architectures": ["BloomForCausalLM"]}))
    asked = {"prompt_tokens": 131072, "new_tokens": 4096, "hardware": "1xh200-sxm-141gb", "mode": "infer"}
    plan = plan_request(Request(model="a/b", config=str(tmp_path / "config.json"), offline=True, **asked)).plan
    assert plan.case.model.max_positions is None
    assert any(context >= 135168 and sequences for context, sequences in find_limits(plan).frontier)


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
    soonest = plan_8b(hardware="8xh100-sxm-80gb", optimize_for="latency").estimate.step_seconds
    with pytest.raises(NothingFits, match=rf"no plan answers within .* takes {soonest:.3f} s on 8 x NVIDIA") as refused:
        plan_8b(hardware="8xh100-sxm-80gb", max_latency=0.01)
    assert refused.value.hint.startswith("fewer --new-tokens or --prompt-tokens")


def test_rows_of_a_server_on_a_cpu_are_memory_from_its_start():
    """PyTorch writes the zeros that it allocates: 1.13 GiB were predicted of SmolLM2 for 4 users, 1.66 measured."""
    asked = {"model": str(MODELS / "smollm2-135m.json"), "mode": "infer", "hardware": "cpu:4", "concurrency": 4}
    document = document_request(Request(**asked, pins=(("engine", "transformers"), ("precision", "fp32"))))
    token_bytes = 2 * 30 * 3 * 64 * 4
    tokens = document.config.serving.max_context - 2048 - 128
    beyond = document.config.predicted.peak_memory_gib - document.estimate.peak_memory_gib
    assert tokens > 4096 and beyond == pytest.approx(4 * tokens * token_bytes / 2**30, rel=0.01)


def test_only_formats_that_answer_sooner_are_offered_where_an_answer_takes_too_long():
    """bnb-int8 was, which takes twice the time on a CPU, and not the faster ones of other engines."""
    with pytest.raises(NothingFits) as refused:
        plan_8b(hardware="cpu:16", max_latency=0.01)
    assert "--allow quantization=int4 (" in refused.value.hint and "bnb-int8" not in refused.value.hint
    assert "a smaller --concurrency" not in refused.value.hint


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


def test_vllm_takes_its_share_of_what_a_host_that_shares_its_memory_leaves():
    """It asks for a share of all that CUDA reports, and ends where that is not free: 0.92 of a GB10's 122 GiB never is."""
    for hardware, least, most in (("gb10", 0.7, 0.78), ("rtx-4090", 0.85, 0.95)):
        flags = plan_8b(hardware=hardware, pins=(("engine", "vllm"),)).config.serving.flags
        assert least < flags["gpu-memory-utilization"] < most


def test_llama_cpp_is_taken_where_no_faster_engine_knows_the_model(tmp_path):
    """It is behind ONNX Runtime, whose builder knows fewer models."""
    mixture = {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": 512,
        "vocab_size": 32000,
    }
    mixture |= {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1408}
    (tmp_path / "config.json").write_text(json.dumps(mixture | {"num_local_experts": 8, "num_experts_per_tok": 2}))
    cpu = {"mode": "infer", "hardware": "cpu:16+vnni,64gb", "allow": ("quantization=int4",)}
    document = document_request(Request(model=str(tmp_path / "config.json"), **cpu))
    assert (document.choice["engine"], document.choice["quantization"]) == ("llama-cpp", "int4")
    assert document.config.serving.weights == "int4"
    assert dict(document.edits.environment)["OMP_WAIT_POLICY"] == "PASSIVE"
    assert (
        document_request(Request(model=str(MODELS / "llama-3.1-8b.json"), **cpu)).choice["engine"]
        == "onnxruntime-genai"
    )


def test_an_engine_packs_what_it_can_multiply():
    with pytest.raises(UsageError, match="does not pack weights into 4 bits"):
        plan_8b(hardware="cpu:16,64gb", pins=(("engine", "ctranslate2"), ("quantization", "int4")))
    document = plan_8b(hardware="cpu:16,64gb", pins=(("engine", "ctranslate2"), ("quantization", "int8")))
    assert document.config.serving.weights == "int8"


def test_kubernetes_gets_what_the_plan_uses():
    document = plan_70b(hardware="8xh100-sxm-80gb", concurrency=64)
    claim, model, deployment, service = yaml.safe_load_all(document.files["serve.k8s.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert claim["kind"] == model["kind"] == "PersistentVolumeClaim"
    storage = int(model["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert storage > 1.2 * 141e9 / 2**30  # the files in 16 bits, whatever a GPU holds of them
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 141e9 / 100e6  # read at 100 MB/s, and then some
    assert deployment["spec"]["progressDeadlineSeconds"] > probe["periodSeconds"] * probe["failureThreshold"]
    assert "args" not in container and "command" not in container  # the image's own, with its launcher
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "model")
    assert mount["readOnly"] and mount["mountPath"].startswith("/")
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == document.layout.devices
    assert pod["terminationGracePeriodSeconds"] > document.server.grace_seconds
    assert pod["enableServiceLinks"] is False
    assert document.docker.stop_seconds == pod["terminationGracePeriodSeconds"]
    assert service["spec"]["ports"][0]["port"] == document.config.serving.port


def test_a_pod_without_gpus_may_use_what_its_server_takes():
    """8 requests of 37,376 tokens, which the server accepts, need 103 GiB: the pod of an 8B ended at 42."""
    document = plan_8b(hardware="cpu:32,128gb", concurrency=8)
    deployment = next(d for d in yaml.safe_load_all(document.files["serve.k8s.yaml"]) if d["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))
    cache = 8 * document.config.serving.max_context * 32 * 2 * 8 * 128 * 4 / 2**30
    assert document.estimate.memory_gib["weights"] + cache < memory < 128


def test_a_pod_sees_every_folder_that_the_server_reads(tmp_path):
    """A tokenizer and a small model of their own, too: the model's folder alone was there."""
    small = make_small(tmp_path / "small")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    told = {"hardware": "1xh100-sxm-80gb", "pins": (("engine", "vllm"),)}
    document = plan_8b(**told, draft_model=str(small), tokenizer=str(tokenizer))
    *claims, deployment, _ = yaml.safe_load_all(document.files["serve.k8s.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] != "shm"}
    assert set(mounts) == {"cache", "model", "tokenizer", "draft-model"} and len(claims) == len(mounts)
    assert mounts["tokenizer"]["mountPath"] == "/project/tokenizer/tokenizer" and mounts["draft-model"]["readOnly"]
    claimed = {claim["metadata"]["name"] for claim in claims}
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] != "shm"} == claimed
    sizes = {claim["metadata"]["name"].removeprefix(f"{document.project.name}-"): claim["spec"] for claim in claims}
    gib = {name: int(spec["resources"]["requests"]["storage"].removesuffix("Gi")) for name, spec in sizes.items()}
    assert gib["tokenizer"] == 1 and gib["draft-model"] < 8 and gib["model"] == 22  # each had the model's 22
    assert gib["cache"] == 20  # nothing comes from the hub: what is compiled alone


def test_a_training_project_answers_by_transformers():
    plan = plan_request(Request(hardware="1xh100-sxm-80gb", global_batch=4)).plan
    assert plan.serving.best.choice["engine"] == "transformers"
    assert "server" not in to_json(document_request(Request(hardware="1xh100-sxm-80gb", global_batch=4)))


def test_a_classifier_has_no_server(tmp_path):
    config = json.loads((MODELS / "bert-base.json").read_text()) | {"architectures": ["BertForSequenceClassification"]}
    (tmp_path / "bert.json").write_text(json.dumps(config))
    classifier = Request(
        model=str(tmp_path / "bert.json"), tokenizer="owner/name", mode="infer", task="text-classification"
    )
    document = document_request(replace(classifier, hardware="cpu:4"))
    assert document.choice["engine"] == "transformers" and "server" not in to_json(document)
    assert document.config.rows.weights == "float32" and "datasets" not in document.versions


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_every_module_that_a_project_imports_is_in_it(engine):
    """And nothing but them comes from elsewhere than its environment."""
    hardware = "1xh100-sxm-80gb" if engine.command else "1xm4-max" if engine.leaf == "mlx" else "cpu:16,64gb"
    document = plan_8b(hardware=hardware, concurrency=4, pins=(("engine", engine.name),))
    fragments, made = ROOT / "templates" / "fragments", {"model"}
    known = {path.stem for path in fragments.rglob("*.py")} | {"engine", "server", "batch_work", "machine", *made}
    for name, leaf in document.modules.items():
        tree = ast.parse((fragments / f"{leaf}.py").read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        ours = (imported & known) - {"json", "csv", "transformers", "vllm", "sglang", "openvino_genai", "ctranslate2"}
        assert ours <= {*document.modules, *made}, (name, ours - {*document.modules})


def test_an_answer_has_its_positions_beside_the_prompt():
    """A server that is told a longer context than the model has does not start (vLLM: max-model-len)."""
    short = {"model": str(MODELS / "smollm2-135m.json"), "mode": "infer", "hardware": "cpu:4"}
    document = document_request(Request(**short, prompt_tokens=8000, new_tokens=192))
    assert document.config.serving.max_context == 8192
    with pytest.raises(UsageError, match="longer than the 8192 positions"):
        plan_request(Request(**short, prompt_tokens=8000, new_tokens=193))
    # nobody said how long a prompt is: it leaves room for the answer
    assert plan_request(Request(**short, new_tokens=7000)).plan.case.workload.seq_len == 1192
    with pytest.raises(UsageError, match="an answer of 9000 are longer"):
        plan_request(Request(**short, new_tokens=9000))
    with pytest.raises(UsageError, match="--prompt-tokens 9000 is longer"):  # as it was given
        plan_request(Request(**short, prompt_tokens=9000))


LENGTHS = ("--prompt-tokens", "--seq-len")


def test_rungs_of_an_inference_name_the_option_that_was_given():
    """What a rung says is added to the command line: --seq-len beside --prompt-tokens is refused."""
    asked = Request(
        model=str(MODELS / "llama-3.1-8b.json"),
        mode="infer",
        hardware="1xa100-sxm-40gb",
        prompt_tokens=60_000,
        concurrency=64,
    )
    with pytest.raises(NothingFits) as refused:
        plan_request(asked)
    (option, length), *others = [o.split() for o in (r.option for r in refused.value.ladder) if o.split()[0] in LENGTHS]
    assert option == "--prompt-tokens" and not others
    assert plan_request(replace(asked, prompt_tokens=int(length))).plan.case.workload.seq_len == int(length)


@pytest.mark.parametrize("device", [d.id for d in list_devices() if d.is_alone and d.vendor == "nvidia"])
def test_a_board_that_has_no_second_beside_it_is_offered_more_machines(device):
    with pytest.raises(NothingFits) as refused:
        plan_70b(hardware=f"1x{device}", concurrency=64, prompt_tokens=8192)
    options = [rung.option for rung in refused.value.ladder]
    assert options and not any(f"x{device}" in option and f"x1x{device}" not in option for option in options)


def test_a_host_that_holds_no_server_is_known_before_anything_is_timed(monkeypatch):
    """On 1,250 nodes of 72 devices the time of every way to divide them was asked for first, eleven times: 12 s."""
    spaces = []
    monkeypatch.setattr(plan, "plan_space", lambda space: spaces.append(space) or plan_space(space))
    monkeypatch.setattr(plan, "refuse_space", lambda space: NothingFits("it does not fit"))
    with pytest.raises(NothingFits):
        plan_8b(hardware="1250x72xrtx-4090", host_memory="4gb", concurrency=5000)
    (space,) = spaces
    assert len(space.list_counts()) > 80 and not space.memo.seconds
    assert space.asked == SEARCH_QUESTIONS * space.memo.searches  # which is what a ladder may not do for ever


def test_fewer_at_a_time_is_a_rung():
    with pytest.raises(NothingFits) as refused:
        plan_8b(hardware="1xrtx-3090", concurrency=64)
    rung = next(rung for rung in refused.value.ladder if rung.option.startswith("--concurrency"))
    fewer = int(rung.option.split()[1])
    assert plan_8b(hardware="1xrtx-3090", concurrency=fewer).config.serving.max_concurrency == fewer


def test_where_all_users_at_a_time_leave_no_room_it_is_said_that_some_had_better_wait():
    """1,016 fill eight boards but for an engine's own share: layers one after the other, a tenth as fast as half of them at a time."""
    told = {"hardware": "8xh100-sxm-80gb", "prompt_tokens": 4096}
    crowded, fewer = plan_8b(concurrency=1016, **told), plan_8b(concurrency=508, **told)
    (said,) = [note for note in crowded.notes if "wait for their turn" in note.text]
    assert "--concurrency 508" in said.text and "engine=vllm" in said.text
    assert fewer.estimate.tokens_per_second > 5 * crowded.estimate.tokens_per_second
    assert not any("wait for their turn" in note.text for note in fewer.notes)


@pytest.mark.parametrize("quantization", ["torchao-int8", "torchao-int4"])
def test_torchaos_weights_are_refused_on_a_cpu_by_what_was_measured(quantization):
    """A quarter faster was planned of 8 bits there."""
    with pytest.raises(UsageError, match="no faster with its weights"):
        plan_8b(hardware="cpu:16", pins=(("quantization", quantization), ("compile", "cpu-decode")))


@pytest.mark.parametrize("engine, flag", [("vllm", "max-num-seqs"), ("sglang", "max-running-requests")])
def test_a_copy_of_the_model_is_told_its_own_share_of_the_requests(engine, flag):
    """Each of SGLang's replicas counts for itself: eight of them took eight times what there is memory for."""
    pins = (("engine", engine),)
    flags = plan_8b(
        hardware="8xh100-sxm-80gb", concurrency=512, optimize_for="throughput", pins=pins
    ).config.serving.flags
    copies = flags.get("data-parallel-size", flags.get("dp-size"))
    assert copies > 1 and flags[flag] * copies == 512
    if "max-queued-requests" in flags:
        assert flags["max-queued-requests"] * copies == 4 * 512


def test_what_is_allowed_and_cannot_be_used_is_said():
    """`--allow int4` of the README is of engines for CPUs: on a GPU the plan stayed in 16 bits, and nothing said why."""

    def list_vain(**told) -> list[str]:
        return [note.text for note in plan_8b(**told).notes if "changes nothing here" in note.text]

    (said,) = list_vain(hardware="1xh100-sxm-80gb", allow=("int4",))
    assert "--allow int4" in said and "quantization=bnb-nf4" in said and "quantization=torchao-int4" in said
    assert "fp8" not in said
    assert list_vain(hardware="1xh100-sxm-80gb", allow=("fp8", "quantization=bnb-nf4")) == []
    assert list_vain(hardware="cpu:16", allow=("int4",)) == []
    (other,) = list_vain(hardware="cpu:16", allow=("packing=varlen",))
    assert "--mode infer" in other


def plan_window(folder: Path, window: int, **told) -> PlanDocument:
    """Of Mistral's sizes, whose layers all see a window."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    config = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **sizes, "num_key_value_heads": 8}
    config |= {"vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": window}
    (folder / "config.json").write_text(json.dumps(config))
    pins = (("engine", "transformers"),)
    return document_request(
        Request(model=str(folder / "config.json"), mode="infer", hardware="1xh100-sxm-80gb", pins=pins, **told)
    )


def test_rows_of_the_server_are_allocated_once_and_compiled_for_one():
    pins = (("engine", "transformers"),)
    one, eight = (plan_8b(hardware="1xh100-sxm-80gb", pins=pins, concurrency=n) for n in (1, 8))
    assert one.choice["cache"] == eight.choice["cache"] == one.config.serving.cache == "static"
    assert one.config.serving.compile == "reduce-overhead" and not isinstance(eight.config.serving.compile, str)
    assert not one.edits.infer_generate_arguments
    # rows of all the context, whatever the plan's lengths are
    row_gib = 2 * 32 * 8 * 128 * 2 * eight.config.serving.max_context / 2**30
    assert eight.config.predicted.peak_memory_gib > 14.9 + 8 * row_gib
    # a device that has room for the plan's lengths alone is refused by the guard, not by the allocator at the start
    assert eight.config.machine.needs_gib == pytest.approx(eight.config.predicted.peak_memory_gib, abs=0.05)
    assert eight.config.machine.needs_gib < eight.config.machine.memory_gib
    with pytest.raises(UsageError, match="one at a time is compiled"):
        plan_8b(hardware="1xh100-sxm-80gb", pins=(*pins, ("compile", "static-decode")), concurrency=8)
    with pytest.raises(UsageError, match="allocated once"):
        plan_8b(hardware="1xh100-sxm-80gb", pins=(*pins, ("cache", "dynamic")))


def test_windows_that_answers_outgrow_are_kept_apart(tmp_path):
    narrow, wide = plan_window(tmp_path, 1024, concurrency=8), plan_window(tmp_path, 4096, concurrency=8)
    assert narrow.config.serving.cache == "dynamic" and narrow.config.serving.max_context > 4096
    assert wide.config.serving.cache == "static" and wide.config.serving.max_context == 4096
    assert wide.server.limited_by == "window of the model's layers"
    # one after the other, against together
    assert narrow.estimate.tokens_per_second < wide.estimate.tokens_per_second / 4


def test_the_script_of_a_training_project_has_the_cache_of_generate():
    document = document_request(Request(model=str(MODELS / "llama-3.1-8b.json"), hardware="1xh100-sxm-80gb"))
    assert [a.name for a in document.edits.infer_generate_arguments] == ["cache_implementation"]


def test_a_cpu_server_of_one_answer_is_told_to_compile_when_asked():
    told = {"hardware": "cpu:8,64gb", "pins": (("engine", "transformers"), ("compile", "cpu-decode"))}
    document = plan_8b(**told)
    assert document.config.serving.compile == "default" and document.compilers.infer == ("g++",)
    assert not plan_8b(hardware="cpu:8,64gb", pins=told["pins"][:1]).config.serving.compile
    with pytest.raises(UsageError, match="several answers"):
        plan_8b(**told, concurrency=8)


@pytest.mark.parametrize(("engine", "library"), [("vllm", "vllm"), ("sglang", "sglang")])
def test_an_engine_in_one_process_says_that_it_cannot_span_nodes(engine, library, tmp_path):
    """Before the model is loaded: the library is not even asked."""
    fragments = ROOT / "templates" / "fragments"
    shutil.copy(fragments / "engines" / f"{engine}.py", tmp_path / "engine.py")
    shutil.copy(next(fragments.rglob("whole_answers.py")), tmp_path)
    (tmp_path / library / "lora").mkdir(parents=True)
    (tmp_path / library / "__init__.py").write_text("LLM = SamplingParams = None\n")
    (tmp_path / library / "lora" / "request.py").write_text("LoRARequest = None\n")
    for name in ("machine", "prompts", "sampling", "sources"):
        (tmp_path / f"{name}.py").write_text(
            "peak_memory = Prompts = Sampling = Receive = describe_failure = find_source = None\n"
        )
    parts = {"vllm": "pipeline-parallel-size", "sglang": "pp-size"}[engine]
    config = {"serving": {"flags": {"nnodes": 2, parts: 2}}}
    program = f"from engine import Engine; Engine({config!r}, None)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "divided over 2 nodes" in done.stderr
    document = plan_70b(hardware="4x1xh100-sxm-80gb")
    render(to_json(document), tmp_path / "p")
    readme = (tmp_path / "p" / "README.md").read_text()
    assert "make infer" not in readme and "sbatch serve.sbatch" in readme


@pytest.mark.parametrize("hardware", ["1xh100-sxm-80gb", "2xrtx-4060", "1xrtx-3050-6gb", "2xrtx-4090", "1xgb10"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_an_engine_takes_at_once_holds_all_that_it_needs(hardware, engine):
    """And is free: beside the context and the communicators, which are there before it."""
    pins = (("engine", engine),)
    told = Request(model=str(MODELS / "qwen2.5-1.5b.json"), mode="infer", hardware=hardware, concurrency=4, pins=pins)
    plan = plan_request(told).plan
    estimate, limits = plan.best.estimate, find_limits(plan)
    parts = {item.name: item.value for item in estimate.memory}
    before = parts["context"] + parts.get("communicator", 0.0)
    reported = (plan.case.shared_memory_bytes or plan.case.device_memory_bytes) / (1 << 30)
    assert estimate.peak_memory_gib <= limits.memory_share * reported <= estimate.limit_gib - before
    static = limits.static_share * (estimate.limit_gib - before)
    beside = sum(parts.values()) - parts["weights"] - parts["kv cache"]
    assert parts["weights"] + parts["kv cache"] <= static <= reported * limits.memory_share - beside
    assert limits.batched_tokens >= limits.of_one_copy


def test_prompts_are_looked_up_on_request():
    pins = (("speculation", "prompt-lookup"),)
    plain = plan_8b(hardware="1xh100-sxm-80gb")
    own = plan_8b(hardware="1xh100-sxm-80gb", pins=(*pins, ("engine", "transformers")))
    vllm = plan_8b(hardware="1xh100-sxm-80gb", pins=(*pins, ("engine", "vllm")))
    assert plain.choice["speculation"] == "off" and not isinstance(plain.config.serving.proposed_tokens, int)
    assert own.config.serving.proposed_tokens == 4 and own.modules["proposals"] == "serving/proposals/prompt_lookup"
    asked = json.loads(vllm.config.serving.flags["speculative-config"])
    assert (asked["method"], asked["num_speculative_tokens"]) == ("ngram", 4)
    assert not own.edits.infer_generate_arguments
    with pytest.raises(UsageError, match="one request at a time"):
        plan_8b(hardware="1xh100-sxm-80gb", pins=pins, concurrency=8)
    with pytest.raises(UsageError, match="checks no proposed tokens"):
        plan_8b(hardware="cpu", pins=(*pins, ("engine", "onnxruntime-genai")))


def make_small(folder: Path, **changes) -> Path:
    """A config.json of 1.2B parameters with the vocabulary of Llama 3.1."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True}
    config = json.loads((MODELS / "llama-3.1-8b.json").read_text()) | sizes | {"head_dim": 64} | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def test_a_small_model_proposes_where_it_is_named(tmp_path):
    small = make_small(tmp_path / "small")
    told = {"hardware": "1xh100-sxm-80gb", "draft_model": str(small)}
    plain = plan_8b(hardware="1xh100-sxm-80gb")
    own, vllm = (plan_8b(**told, pins=(("engine", engine),)) for engine in ("transformers", "vllm"))
    for document in (own, vllm):
        assert document.choice["speculation"] == "draft-model" and document.config.draft_model.endswith("config.json")
        assert 2.2 < document.estimate.memory_gib["draft model"] < 2.6
        assert {d.axis: d.why for d in document.decisions}["speculation"] == "you asked for --draft-model"
    assert (own.config.serving.proposed_tokens, own.modules["proposals"]) == (4, "serving/proposals/draft_model")
    asked = json.loads(vllm.config.serving.flags["speculative-config"])
    assert asked == {"method": "draft_model", "num_speculative_tokens": 4}
    assert (
        vllm.estimate.tokens_per_second
        > plan_8b(hardware="1xh100-sxm-80gb", pins=(("engine", "vllm"),)).estimate.tokens_per_second
    )
    assert (
        not isinstance(plain.config.draft_model, str) and record_request(Request(**told), None)["draft_model"] is None
    )


def test_a_small_falcon_keeps_the_keys_of_every_head_in_transformers_alone(tmp_path):
    """Its own code repeats them for its queries before they reach the cache: 64 heads for 8."""
    falcon = {
        "model_type": "falcon",
        "architectures": ["FalconForCausalLM"],
        "new_decoder_architecture": True,
        **{"hidden_size": 4096, "num_attention_heads": 64, "num_kv_heads": 8, "num_hidden_layers": 16},
        **{"vocab_size": 128256, "alibi": False, "bias": False, "multi_query": True, "parallel_attn": True},
    }
    small = tmp_path / "config.json"
    small.write_text(json.dumps(falcon))
    told = {"hardware": "1xh100-sxm-80gb", "draft_model": str(small), "prompt_tokens": 4096}
    own, vllm = (
        plan_8b(**told, pins=(("engine", engine),)).estimate.memory_gib["draft model"]
        for engine in ("transformers", "vllm")
    )
    groups = 16 * 2 * 8 * 64 * (4096 + 128) * 2 / 2**30
    assert own - vllm == pytest.approx(7 * groups, rel=0.01)


def test_llama_cpp_takes_a_small_model_beside_its_own(tmp_path):
    told = {"hardware": "cpu:16,64gb", "draft_model": str(make_small(tmp_path / "small"))}
    document = plan_8b(**told, pins=(("engine", "llama-cpp"),), allow=("quantization=int4",))
    assert (document.choice["speculation"], document.config.serving.proposed_tokens) == ("draft-model", 4)
    assert "proposals" not in document.modules
    assert 0.6 < document.estimate.memory_gib["draft model"] < 0.8  # 1.2B in Q4_0 and its keys and values in 16 bits
    with pytest.raises(UsageError, match="checks no proposed tokens"):
        plan_8b(hardware="cpu:16,64gb", pins=(("engine", "llama-cpp"), ("speculation", "prompt-lookup")))


def test_a_small_model_that_cannot_propose_is_refused(tmp_path):
    small, other = make_small(tmp_path / "small"), make_small(tmp_path / "other", vocab_size=32000)
    for told, words in (
        ({"draft_model": str(other)}, "^--draft-model cannot be used here: other has a vocabulary of 32000"),
        (
            {"draft_model": str(small), "pins": (("speculation", "off"),)},
            "--pin speculation=off and --draft-model contradict each other",
        ),
        ({"draft_model": str(small), "concurrency": 8}, "one request at a time"),
        (
            {"draft_model": str(small), "pins": (("engine", "sglang"),)},
            "--draft-model .*checks no proposed tokens",
        ),
        ({"draft_model": str(small), "task": "feature-extraction"}, "only a server takes two models"),
    ):
        with pytest.raises(UsageError, match=words) as error:
            plan_8b(hardware="1xh100-sxm-80gb", **told)
        assert "speculation=draft-model" not in str(error.value)
    with pytest.raises(UsageError, match="--draft-model is for answers"):
        plan_request(Request(model=str(MODELS / "llama-3.1-8b.json"), draft_model=str(small)))


def test_a_choice_among_engines_that_are_nearly_as_fast_says_so():
    """The reason was one of training: the speed of larger micro-batches."""
    document = plan_8b(hardware="1xrtx-4090", allow=("quantization=torchao-int8",))
    why = next(decision.why for decision in document.decisions if decision.axis == "engine")
    assert "do not tell apart what is nearer than 13%" in why and "micro-batch" not in why


@pytest.mark.parametrize(("engine", "dtype"), [("vllm", "fp8"), ("sglang", "fp8_e4m3")])
def test_a_cache_in_8_bits_holds_twice_as_much_and_is_told_to_the_engine(engine, dtype):
    told = {"hardware": "1xl40s", "concurrency": 8}
    plain, packed = (plan_8b(**told, pins=(("engine", engine), ("cache", cache))) for cache in ("engine", "engine-fp8"))
    assert "kv-cache-dtype" not in plain.config.serving.flags
    assert packed.config.serving.flags["kv-cache-dtype"] == dtype
    whole, half = ({row.context: row.sequences for row in each.server.frontier} for each in (plain, packed))
    assert 1.95 < half[8192] / whole[8192] < 2.2
    with pytest.raises(UsageError, match="compute capability"):
        plan_8b(hardware="1xa100-sxm-80gb", pins=(("engine", engine), ("cache", "engine-fp8")))
    with pytest.raises(UsageError, match="keeps no cache of its own"):
        plan_8b(hardware="1xl40s", pins=(("engine", "transformers"), ("cache", "engine-fp8")))


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("weights", ["none", "int8", "int4"])
def test_a_cpu_takes_the_engine_that_was_fastest_there(weights, concurrency):
    """benchmarks/results/engines_cpu.json: ONNX Runtime, and OpenVINO as fast in 32 bits, with one environment more."""
    allowed = () if weights == "none" else (f"quantization={weights}",)
    told = {"hardware": "cpu:2+vnni,24gb", "concurrency": concurrency, "allow": allowed}
    document = document_request(Request(model=str(MODELS / "smollm2-135m.json"), mode="infer", **told))
    assert document.choice["engine"] == "onnxruntime-genai" and document.choice["quantization"] == weights


@pytest.mark.parametrize(("lengths", "weights"), [((2048, 16), "none"), ((64, 256), "int8")])
def test_a_cpu_without_vnni_packs_weights_for_answers_and_not_for_prompts(lengths, weights):
    """benchmarks/results/engines_cpu_avx2.json: 490 and 357 tokens/s of a prompt in 32 and 8 bits, 37 and 77 of an answer."""
    told = {"hardware": "cpu:2+avx2,24gb", "allow": ("quantization=int8",)}
    told |= dict(zip(("prompt_tokens", "new_tokens"), lengths, strict=True))
    document = document_request(Request(model=str(MODELS / "smollm2-135m.json"), mode="infer", **told))
    assert document.choice["quantization"] == weights


def test_openvino_serves_in_16_bits_where_there_are_tiles():
    """benchmarks/results/engines_cpu_amx.json; with AVX512_BF16 alone its prompts took longer in bf16 than in 32 bits, and with one
    thread its products ended the process."""

    def plan(hardware: str, *pins: tuple[str, str]):
        told = {"hardware": hardware, "prompt_tokens": 512, "new_tokens": 128, "pins": (("precision", "bf16"), *pins)}
        return document_request(Request(model=str(MODELS / "smollm2-135m.json"), mode="infer", **told))

    served = plan("cpu:2+amx,24gb")
    assert (served.choice["engine"], served.config.serving.weights) == ("openvino-genai", "bfloat16")
    for hardware in ("cpu:1+amx,24gb", "cpu:2+bf16,24gb"):
        assert plan(hardware).choice["engine"] == "transformers"
        with pytest.raises(UsageError, match="it computes in 32 bits"):
            plan(hardware, ("engine", "openvino-genai"))
    with pytest.raises(UsageError, match="of plain weights"):
        plan("cpu:2+amx,24gb", ("quantization", "int8"))


@pytest.mark.parametrize("template", [True, None, False])
def test_the_readme_asks_what_the_model_answers(tmp_path, template):
    """A model without a chat template refuses chats; the converter's environment stays where it is."""
    document = to_json(plan_8b(hardware="cpu", pins=(("engine", "onnxruntime-genai"),)))
    document["project"]["chat_template"] = template
    render(document, tmp_path / "p")
    commands = (tmp_path / "p" / "README.md").read_text().split("```sh")[2:]
    assert ("/v1/completions" in commands[0]) == (template is False)
    assert ("/v1/chat/completions" in commands[0].split("curl", 1)[1]) == (template is not False)
    assert "--exclude=/.venv --exclude=/.venv-convert " in commands[1]
    packed = pack_project(plan_8b(hardware="cpu", pins=(("engine", "onnxruntime-genai"),)), (), tmp_path / "p", ())
    assert "--exclude=/.venv-convert" in packed.commands[0].split()


def test_boards_of_amd_are_served_by_vllm_from_its_own_wheels():
    """8 MI300X for 64 users were one board with plain Transformers."""
    asked = {"hardware": "8xmi300x", "concurrency": 64}
    document = plan_70b(**asked)
    assert document.choice["engine"] == "vllm" and document.choice["parallelism"] == "served"
    assert document.layout.devices == 8 and document.config.serving.flags["tensor-parallel-size"] > 1
    assert document.docker.base.startswith("vllm/vllm-openai-rocm:v") and not document.docker.torch_index
    assert any("/opt/rocm" in line for line in document.untested)
    # the wheel's own torch: neither PyTorch's nor PyPI's is asked for
    request = Request(model=str(MODELS / "llama-3.1-70b.json"), mode="infer", **asked)
    project = tomllib.loads(dump_pyproject(plan_request(request), "demo"))
    versions = dict(line.split("==") for line in project["project"]["dependencies"])
    assert not set(versions) & {"torch", "transformers", "nvidia-ml-py"}
    (index,) = project["tool"]["uv"]["index"]
    assert index["url"] == document.docker.engine_index and "explicit" not in index
    assert versions["vllm"] == "+".join(index["url"].split("/")[-2:])
    assert project["project"]["requires-python"] == ">=3.12,<3.13"


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("mi100", "no kernels for gfx908"),
        ("rx-7600-xt", "no kernels for gfx1102"),
        ("rx-6800-xt", "no kernels for gfx1030"),
    ],
)
def test_vllm_is_refused_on_boards_that_its_wheels_have_no_kernels_for(device, why):
    with pytest.raises(UsageError, match=why):
        plan_8b(hardware=f"4x{device}", pins=(("engine", "vllm"),))


@pytest.mark.parametrize(
    "engine, hardware",
    [
        *((name, "cpu:8,64gb") for name in ("ctranslate2", "llama-cpp", "onnxruntime-genai", "openvino-genai")),
        ("sglang", "1xl40s"),
        ("vllm", "1xl40s"),
        ("mlx", "m4-max"),
    ],
)
def test_a_project_of_each_engine_type_checks(engine, hardware, tmp_path):
    """`make check` of one found that CTranslate2's generator may be None; the golden projects have two engines of eight."""
    from benchmarks.fuzz_projects import check_types

    asked = {"config": str(MODELS / "llama-3.1-8b.json"), "tokenizer": "owner/name", "offline": True}
    document = document_request(
        Request(model="owner/name", mode="infer", hardware=hardware, pins=(("engine", engine),), **asked)
    )
    render(to_json(document), tmp_path / "p")
    assert list(check_types(tmp_path / "p", {})) == []


def test_copies_on_several_nodes_answer_more_requests_than_one_node():
    """Two nodes were eight devices of sixteen: a copy was within a node, or one over both."""
    told = {"concurrency": 512, "prompt_tokens": 1024, "new_tokens": 256, "hardware": "2x8xh100"}
    both = plan_8b(**told)
    assert both.choice["parallelism"] == "served-copies" and both.layout.devices == 16
    flags = both.config.serving.flags
    copies = flags["data-parallel-size"]
    assert (flags["nnodes"], flags.get("tensor-parallel-size", 1) * copies) == (2, 16)
    assert "pipeline-parallel-size" not in flags and flags["max-num-seqs"] == -(-512 // copies)
    assert {"node", "addresses", "drain"} <= set(both.modules)
    one = plan_8b(**told | {"hardware": "8xh100"})
    assert "drain" in one.modules and not {"node", "addresses"} & set(one.modules)
    assert both.estimate.tokens_per_second > 1.5 * one.estimate.tokens_per_second


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"hardware": "8xh100", "concurrency": 64}, "there is one node"),
        ({"hardware": "2x8xh100", "concurrency": 1}, "fewer than copies would be"),
        ({"hardware": "2x8xh100", "concurrency": 64, "engine": "sglang"}, "hands nothing out to other nodes"),
    ],
)
def test_copies_on_several_nodes_are_refused(told, why):
    engine = told.pop("engine", "vllm")
    with pytest.raises(UsageError, match=re.escape(why)):
        plan_8b(pins=(("engine", engine), ("parallelism", "served-copies")), **told)


def test_a_mixture_is_not_copied_over_nodes():
    request = {"model": "m/m", "config": str(MODELS / "qwen3-30b-a3b.json"), "mode": "infer", "offline": True}
    with pytest.raises(UsageError, match="each layer would wait for the network"):
        document_request(
            Request(**request, hardware="2x8xh100", concurrency=64, pins=(("parallelism", "served-copies"),))
        )


def test_nodes_that_serve_are_started_each(tmp_path):
    """`init` said `make smoke && make infer`, which no node can where a model is divided over them."""
    document = plan_8b(hardware="2x8xh100", concurrency=512)
    first, *others = list_next_steps(document, "p")
    assert first == "cd p && make setup && sbatch serve.sbatch" and len(others) == 2
    assert all("MASTER_ADDR=NODE NODE_RANK=0" in each for each in others)
    assert describe_place(document) == "there, on a disk that all nodes see"
    render(to_json(document), tmp_path / "p")
    readme = (tmp_path / "p" / "README.md").read_text()
    assert 'make bench ARGS="--url http://127.0.0.1:8000"' in readme
    assert "one copy of the model, on 1 of the 16 devices" in readme and "they say so, and stop" not in readme
    divided = plan_70b(hardware="4x1xh100-sxm-80gb")
    render(to_json(divided), tmp_path / "divided")
    assert "they say so, and stop" in (tmp_path / "divided" / "README.md").read_text()


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_the_first_token_is_the_prompts(engine):
    """An answer of one token paid a step of decoding too."""
    told = {"hardware": "1xl40s", "prompt_tokens": 2048, "pins": (("engine", engine),)}
    one = plan_8b(new_tokens=1, concurrency=1, **told)
    assert set(one.estimate.time_seconds) == {"prefill"}
    assert one.estimate.tokens_per_second == pytest.approx(1 / one.estimate.step_seconds, rel=1e-5)
    assert one.config.predicted.decode_tokens_per_s > 10  # of an answer that goes on
    many = plan_8b(new_tokens=1, concurrency=64, **told)
    assert set(many.estimate.time_seconds) == {"prefill"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_is_not_taken_for_models_that_it_has_no_code_of(tmp_path, engine):
    """It ends at its start: "Model architectures ['GPTNeoForCausalLM'] are not supported for now"."""
    sizes = {"hidden_size": 2048, "num_layers": 24, "num_heads": 16, "vocab_size": 50257, "model_type": "gpt_neo"}
    kinds = {"attention_types": [[["global", "local"], 12]], "max_position_embeddings": 2048, "window_size": 256}
    config = {"architectures": ["GPTNeoForCausalLM"], **sizes, **kinds}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = {"model": "a/b", "config": str(tmp_path / "config.json"), "mode": "infer", "hardware": "1xh100-sxm-80gb"}
    with pytest.raises(UsageError, match="no code of models of type gpt_neo"):
        plan_request(Request(**asked, offline=True, pins=(("engine", engine),)))
    document = document_request(Request(**asked, offline=True, concurrency=64))
    assert document.config.serving.engine == "transformers"


@pytest.mark.parametrize(("hardware", "words"), [("1xt4", "the checkpoint is quantized (mxfp4)"), ("1xl4", None)])
def test_four_bits_of_gpt_oss_are_served_where_the_engine_has_kernels_for_them(hardware, words):
    """vLLM ends at its start on a T4: "The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 80"."""
    asked = Request(model="openai/gpt-oss-20b", mode="infer", hardware=hardware, offline=True, prompt_tokens=256)
    if words is None:
        assert document_request(replace(asked, concurrency=8)).config.serving.engine == "vllm"
        return
    with pytest.raises(PerfgenError, match=re.escape(words)):
        plan_request(replace(asked, pins=(("engine", "vllm"),)))


GEMMA = {
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "head_dim": 256,
}
GEMMA |= {"num_key_value_heads": 1, "vocab_size": 262144, "dtype": "bfloat16", "max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("kind", "architecture", "hardware", "expected"),
    [
        ("gemma2", "Gemma2ForCausalLM", "1xt4", ("transformers", "fp16")),
        ("gemma3_text", "Gemma3ForCausalLM", "1xt4", ("transformers", "fp32")),
        ("gemma3_text", "Gemma3ForCausalLM", "1xl4", ("vllm", "bf16")),
        ("gemma", "GemmaForCausalLM", "1xt4", ("vllm", "fp16")),
    ],
)
def test_what_float16_does_not_hold_is_not_served_in_it(kind, architecture, hardware, expected, tmp_path):
    """vLLM ends at its start ("The model type 'gemma2' does not support float16"); Gemma 3 answers nothing in Transformers either."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA | {"model_type": kind, "architectures": [architecture]}))
    asked = Request(model=str(path), mode="infer", hardware=hardware, offline=True, prompt_tokens=256, concurrency=8)
    choice = document_request(asked).choice
    assert (choice["engine"], choice["precision"]) == expected
