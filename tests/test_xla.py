"""What is emitted for compiled graphs, without their compilers: parsed, held to the rules of XLA and to TrainingArguments."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import statistics
import sys
import time
import tomllib
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from generator.case.request import Request
from generator.case.vendors.google import SKELETON
from generator.decide.space import OF_A_COMPILER
from generator.emit.fixed import list_rows
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.errors import NotEmitted, NothingFits, UsageError
from generator.pipeline import document_request, plan_request
from hwdetect.spec import SpecError, parse_spec

ROOT = Path(__file__).resolve().parent.parent
LEAVES = ROOT / "templates" / "fragments"
SMALL = str(ROOT / "examples/models/smollm2-135m.json")
TEXT = str(next((ROOT / "templates" / "project").glob("*sample*")) / "text.txt")


def ask(**more) -> Request:
    named = {"model": "HuggingFaceTB/SmolLM2-135M", "config": SMALL, "data": TEXT, "seq_len": 256, "global_batch": 32}
    return Request(**(named | more), offline=True)


@pytest.fixture(scope="module")
def static_run():
    spec = importlib.util.spec_from_file_location("static_run", LEAVES / "static_run.py")
    assert spec and spec.loader
    module = sys.modules["static_run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["static_run"]


@pytest.mark.parametrize(
    ("name", "nodes", "each"),
    [("tpu-v5e-8", 1, 8), ("v5e-16", 4, 4), ("tpu-v5p-8", 1, 4), ("v5p-16", 2, 4), ("tpu-v6e-8", 1, 8), ("v4-8", 1, 4)],
)
def test_a_slice_is_spelled_as_google_does(name, nodes, each):
    machine = parse_spec(name)
    assert (machine.nodes.count, len(machine.accelerators)) == (nodes, each)


@pytest.mark.parametrize("name", ["tpu-v5p-1", "v5e-10", "v5e-0"])
def test_a_slice_of_no_size_is_refused(name):
    with pytest.raises(SpecError, match="no slice has this size"):
        parse_spec(name)


@pytest.mark.parametrize("hardware", ["tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8"])
def test_a_tpu_gets_a_project_of_its_own(tmp_path, hardware):
    document = to_json(document_request(ask(hardware=hardware, optimize_for="time"), for_project=True))
    assert document["choice"]["parallelism"] == "spmd"
    assert document["config"]["graphs"]["multiple"] % 128 == 0
    assert any("no TPU was there" in line for line in document["untested"])
    assert any("torch-tpu" in line for line in document["untested"])
    assert any("JAX" in line for line in document["untested"])
    render(document, tmp_path / "project")
    for path in (tmp_path / "project").glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"))
    makefile = (tmp_path / "project" / "Makefile").read_text()
    assert "PJRT_DEVICE := TPU" in makefile and "torchrun" not in makefile
    packages = (tmp_path / "project" / "pyproject.toml").read_text()
    assert "torch==2.9.1" in packages and "libtpu==0.0.21" in packages


def test_a_tokenizer_without_a_chat_template_gets_one_there_too(tmp_path):
    """As its README says: apply_chat_template would raise before the first step."""
    data = str(ROOT / "examples/data/chats.jsonl")
    asked = ask(hardware="cpu:8", framework="pytorch-xla", task="sft", data=data, optimize_for="time")
    render(to_json(document_request(asked, for_project=True)), tmp_path / "project")
    called = [
        node.func.id
        for node in ast.walk(ast.parse((tmp_path / "project/sequences.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert called.index("ensure_chat_template") < called.index("tokenize_examples")
    assert "ensure_chat_template(tokenizer)" in (tmp_path / "project/data.py").read_text()
    assert (tmp_path / "project/chat_template.py").is_file()


@pytest.mark.parametrize("task", ["causal-lm", "sft"])
@pytest.mark.parametrize("work", [{"train": "lora"}, {"model": SMALL, "config": None}])
@pytest.mark.parametrize("where", [{"hardware": "tpu-v5e-8"}, {"hardware": "cpu:8", "framework": "pytorch-xla"}])
def test_what_no_project_is_made_of_is_priced_and_says_so(task, work, where):
    """Adapters, random weights: SFTTrainer, which has no project there either, has no say in the loss."""
    planned = plan_request(ask(task=task, data=None, **work, **where))
    assert planned.plan.best.choice["loss"] == "plain"
    assert any("no project is made" in note.text for note in planned.notes)


@pytest.mark.parametrize("framework", [None, "pytorch-xla", "tensorflow"])
def test_a_cpu_that_is_too_small_is_said_whatever_the_framework(framework):
    """Larger machines are looked for among those that have it."""
    large = {"model": str(ROOT / "examples/models/llama-3.1-70b.json"), "config": None, "data": None}
    with pytest.raises(NothingFits, match="short") as refused:
        plan_request(ask(hardware="cpu:4", host_memory="32gb", framework=framework, **large))
    assert not (framework and any("--hardware" in rung.option for rung in refused.value.ladder))


def test_what_divides_over_several_hosts_is_not_emitted():
    document = document_request(ask(hardware="tpu-v5e-16", optimize_for="time"), for_project=True)
    assert document.choice["parallelism"] == "single"
    with pytest.raises(NotEmitted, match="several hosts"):
        document_request(ask(hardware="tpu-v5e-16", pins=(("parallelism", "spmd"),)), for_project=True)


def test_one_chip_is_not_divided():
    assert document_request(ask(hardware="tpu-v6e"), for_project=True).choice["parallelism"] == "single"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"train": "lora"}, "trains every weight"),
        ({"mode": "infer", "data": None, "global_batch": None}, "no server of PyTorch/XLA"),
    ],
)
def test_what_the_project_of_a_tpu_has_not_is_planned_and_said(more, why):
    with pytest.raises(NotEmitted, match=why):
        document_request(ask(hardware="tpu-v5e-8", **more), for_project=True)


@pytest.mark.parametrize("more", [{"train": "lora"}, {"model": SMALL, "config": None}])
def test_what_has_no_project_is_planned_with_what_the_compiler_has(more):
    """A model of random weights was planned with Accelerate's FSDP2, all of it on the host, and a fused optimizer."""
    for hardware in ("tpu-v5e-8", "tpu-v6e"):
        plan = plan_request(ask(hardware=hardware, **more)).plan
        assert plan.case.skeleton is None
        taken = {t.id for t in plan.best.members if t.axis in OF_A_COMPILER}
        assert taken and taken <= SKELETON.techniques


@pytest.mark.parametrize(
    ("more", "why", "hint"),
    [
        ({"report_to": "wandb"}, "--report-to wandb", "leave it out"),
        ({"early_stopping": 2}, "--early-stopping 2", "leave it out"),
        ({"tokenizer": "gpt2"}, "--tokenizer gpt2", "put it into the folder of the model"),
    ],
)
def test_what_only_trainer_reads_is_refused_with_what_to_do(more, why, hint):
    with pytest.raises(UsageError, match=why) as refused:
        document_request(ask(hardware="tpu-v5e-8", **more), for_project=True)
    assert refused.value.hint == hint


def test_tensorflow_is_for_what_transformers_4_had_in_it():
    with pytest.raises(NotEmitted, match="no TensorFlow model of type llama"):
        document_request(ask(hardware="cpu:4", framework="tensorflow"), for_project=True)


def test_a_framework_that_a_device_has_not_is_refused():
    with pytest.raises(UsageError, match="--framework tensorflow is not for"):
        document_request(ask(hardware="h100-sxm-80gb", framework="tensorflow"))


def test_the_runtime_of_a_tpu_is_the_one_that_its_compiler_asks_for(tmp_path):
    """Of the CPU runtime a project has none."""
    document = to_json(document_request(ask(hardware="cpu:4", framework="pytorch-xla"), for_project=True))
    render(document, tmp_path / "project")
    assert "libtpu" not in (tmp_path / "project" / "pyproject.toml").read_text()


@pytest.mark.parametrize("machine", [{"hardware": "cpu:4", "framework": "pytorch-xla"}, {"hardware": "tpu-v5e-8"}])
def test_torch_is_the_build_for_cpus(machine, tmp_path):
    """What computes is torch-xla's: PyPI's torch would bring 5 GB of CUDA and Triton."""
    render(to_json(document_request(ask(**machine), for_project=True)), tmp_path / "project")
    made = tomllib.loads((tmp_path / "project" / "pyproject.toml").read_text())
    assert made["tool"]["uv"]["index"][0]["url"] == "https://download.pytorch.org/whl/cpu"
    assert "--index-url https://download.pytorch.org/whl/cpu" in (tmp_path / "project" / "Makefile").read_text()


def test_nobody_gets_another_framework_unasked():
    plain, named = (to_json(document_request(ask(hardware="cpu:4", framework=f))) for f in (None, "pytorch"))
    assert plain["choice"] == named["choice"] and plain["modules"] == named["modules"]
    assert "static_run" not in plain["modules"]


def find_counted_blocks(leaf: str) -> list[ast.With]:
    tree = ast.parse((LEAVES / leaf).read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, ast.With) and "expect_one" in ast.unparse(n.items[-1])]


@pytest.mark.parametrize("leaf", ["xla/train.py", "xla/infer.py"])
def test_no_value_is_read_while_a_graph_is_traced(leaf):
    """Each read ends the graph, and waits for it (`.item()`, `.tolist()`, `.cpu()`, `.numpy()`, `nonzero`, boolean indices)."""
    blocks = find_counted_blocks(leaf)
    assert blocks
    for block in blocks:
        called = {n.func.attr for n in ast.walk(block) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
        assert not called & {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select"}
        assert "sync" in called


def test_every_call_of_a_compiled_function_is_counted():
    for leaf, functions in (
        ("tensorflow/train.py", {"self.step", "self.measure"}),
        ("tensorflow/infer.py", {"self.function"}),
    ):
        tree = ast.parse((LEAVES / leaf).read_text(encoding="utf-8"))

        def list_calls(node: ast.AST, functions: set[str] = functions) -> list[ast.Call]:
            return [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) in functions]

        counted = [call for block in find_counted_blocks(leaf) for call in list_calls(block)]
        assert len(counted) == len(list_calls(tree)) == len(functions)
        assert "jit_compile=True" in (LEAVES / leaf).read_text(encoding="utf-8")


def test_no_checkpoint_of_pytorch_xla_is_a_pickle():
    """torch 2.9 is below the floor of stacks.toml for torch.load."""
    text = (LEAVES / "xla/train.py").read_text() + (LEAVES / "xla/infer.py").read_text()
    assert "torch.load" not in text and "torch.save" not in text


def test_flags_are_those_of_training_arguments(static_run):
    from transformers import TrainingArguments

    assert {f.name for f in fields(static_run.RunArguments)} <= {f.name for f in fields(TrainingArguments)}


def test_the_rate_is_that_of_get_scheduler(static_run):
    import torch
    from transformers import get_scheduler

    for kind in ("linear", "cosine", "constant"):
        args = static_run.RunArguments(learning_rate=1.0, lr_scheduler_type=kind, warmup_steps=0.3)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = get_scheduler(kind, optimizer, num_warmup_steps=3, num_training_steps=10)
        for step in range(10):
            assert args.find_rate(step, 10) == pytest.approx(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()


def test_rows_that_fill_no_batch_are_dropped_and_none_comes_twice(static_run):
    for epoch in range(3):
        taken = [n for step in range(4) for n in static_run.order_rows(19, 4, 4 * epoch + step, 42)]
        assert len(taken) == len(set(taken)) == 16
    assert static_run.order_rows(19, 4, 0, 42) != static_run.order_rows(19, 4, 4, 42)


@pytest.mark.parametrize("longest", [1, 31, 32, 33, 100])
def test_batches_are_padded_to_a_multiple_and_filled(static_run, longest):
    rows = [{"input_ids": [5] * n, "labels": [5] * n} for n in {1, longest}]
    batch = static_run.pad_batch(rows, 4, 32, 100, 0)
    length = batch["input_ids"].shape[1]
    assert batch["input_ids"].shape == (4, length) and (length % 32 == 0 or length == 100) and length >= longest
    assert (batch["labels"][len(rows) :] == -100).all() and not batch["attention_mask"][len(rows) :].any()
    assert static_run.count_learned([batch]) == sum(len(row["labels"]) - 1 for row in rows)


def test_a_compilation_too_many_ends_the_run_with_its_shape(static_run):
    made = iter([0, 1, 1, 1, 1, 2, 2, 3])
    counted = static_run.Compilations(lambda: next(made), lambda: "Read on the host: item.")
    for shape in ((4, 64), (4, 64), (4, 128)):
        with counted.expect_one("step", shape):
            pass
    assert counted.report() == {"compilations": 2, "shapes": {"step": [[4, 64], [4, 128]]}}
    with (
        pytest.raises(SystemExit, match=r"\(4, 64\) was compiled 1 times, 0 expected.*item"),
        counted.expect_one("step", (4, 64)),
    ):
        pass


def test_a_checkpoint_is_there_whole_or_not_at_all(static_run, tmp_path):
    args = static_run.RunArguments(output_dir=str(tmp_path), save_total_limit=2)
    for step in (2, 4, 6):
        static_run.save_checkpoint(args, {"step": step, "run": {"seed": 1}}, lambda folder: (folder / "w").touch())

    def fail(folder: Path) -> None:
        raise OSError

    with pytest.raises(OSError):
        static_run.save_checkpoint(args, {"step": 8, "run": {}}, fail)
    found = static_run.find_checkpoints(tmp_path)
    assert [path.name for path in found] == ["checkpoint-4", "checkpoint-6"]
    assert static_run.load_state(found[-1], {"seed": 1})["step"] == 6
    with pytest.raises(SystemExit, match="seed 1, now 2"):
        static_run.load_state(found[-1], {"seed": 2})
    assert all(a < b for a, b in pairwise(found))


@pytest.mark.parametrize("leaf", ["xla/train.py", "tensorflow/train.py"])
def test_a_signal_ends_an_evaluation_and_the_run_that_goes_on_makes_it(static_run, leaf, tmp_path, capsys):
    """It was finished first: whoever sent the signal had killed the run by then, and the steps since the last save were lost."""
    (whole,) = (
        n for n in ast.parse((LEAVES / leaf).read_text()).body if isinstance(n, ast.ClassDef) and n.name == "Run"
    )
    names = ("train", "log_evaluate_save", "evaluate_or_leave")
    whole.body = [n for n in whole.body if isinstance(n, ast.FunctionDef) and n.name in names]
    known = {**vars(static_run), "time": time, "statistics": statistics, "xr": SimpleNamespace(process_count=lambda: 1)}
    exec(compile(ast.Module([whole], []), leaf, "exec"), known)

    def run(stopped: int | None) -> list[int]:
        made, run, found = [], known["Run"](), static_run.find_checkpoints(tmp_path)

        def evaluate() -> dict:
            if run.state["step"] == stopped:
                os.kill(os.getpid(), signal.SIGTERM)
            run.stop.check_evaluation()
            made.append(run.state["step"])
            return {"loss": 1.0}

        run.args = static_run.RunArguments(output_dir=str(tmp_path), eval_strategy="steps", eval_steps=2, save_steps=3)
        run.state = static_run.load_state(found[-1], {}) if found else {"step": 0, "losses": [], "eval": {}, "run": {}}
        run.held_rows, run.steps, run.seconds, run.evaluate, run.train_step = [1], 6, [], evaluate, lambda step: 1.0
        run.write_states, run.kept = lambda folder: None, SimpleNamespace(write=lambda name: None)
        run.train()
        return made

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for stopped in (0, 4, 4, 6, 6):
            with pytest.raises(SystemExit, match="143"):
                run(stopped)
            assert f"stopped by SIGTERM after step {stopped}: run again to go on" in capsys.readouterr().out
        assert run(None) == [6] and static_run.find_checkpoints(tmp_path)[-1].name == "checkpoint-6"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


LIBRARY_CALLS = {
    "xla": {"from_pretrained", "save_pretrained", "AdamW", "StaticCache", "autocast", "zero_grad", "apply_chat_template", "decode"},
    "tensorflow": {"from_pretrained", "save_pretrained", "AdamW", "exclude_from_weight_decay", "function", "tokenizer", "model",
                   "decode", "safe_open"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("xla", {"hardware": "cpu:4", "framework": "pytorch-xla"}),
        (
            "tensorflow",
            {"hardware": "cpu:4", "framework": "tensorflow", "model": "openai-community/gpt2", "config": None},
        ),
    ],
)
def test_why_has_an_answer_for_every_argument_of_the_libraries(framework, more, tmp_path):
    """`perfgen why KEY` for every keyword that the training and the answers of a compiled project give to a library."""
    from generator.show.why import explain_key

    if framework == "tensorflow":
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
                  "n_positions": 256, "vocab_size": 1024}  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config))
        more = more | {"config": str(tmp_path / "config.json")}
    document = document_request(ask(**more), for_project=True)
    words = set()
    for path in (LEAVES / framework).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in LIBRARY_CALLS[framework]:
                words |= {keyword.arg for keyword in node.keywords if keyword.arg}
    assert len(words) > 8
    assert all(len(explain_key(document, word).why) > 10 for word in sorted(words))
    assert {row.name for row in list_rows(document)} >= set(dict(document.edits.environment))
