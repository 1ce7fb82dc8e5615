"""The forms of adapters (--adapter): planned, emitted, trained, resumed and served."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from making import H100, T4, case, cost, llama
from projects import MODEL
from rules.table import mixture, on

from generator.case.request import Request
from generator.cli import perfgen
from generator.cost.execution import Execution
from generator.decide.plan import decide
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.errors import UsageError
from generator.inputs.meta_device import make_config
from generator.model import describe
from generator.pipeline import plan_request
from generator.techniques.base import find_technique
from generator.techniques.trained.lora import make_adapter_edits

sys.path.insert(0, str(Path(__file__).parent / "model"))  # variants.py lies there

from variants import configs

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
FORMS = ("lora", "dora", "rslora")
SWITCHES = {"lora": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}}
NAMES = {"lora": "LoRA", "dora": "DoRA", "rslora": "rsLoRA"}


def document(**more) -> dict:
    words = {"model": "m", "config": str(MODELS / "qwen2.5-1.5b.json"), "hardware": "1xrtx-4090", "offline": True}
    return json.loads(json.dumps(to_json(build_document(plan_request(Request(**words | {"train": "lora"} | more))))))


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_written_to_config_yaml_and_named(form):
    of = document(adapter=form)
    assert {k: v for k, v in of["config"]["lora"].items() if k.startswith("use_")} == SWITCHES[form]
    assert of["project"]["title"].startswith(f"Train {NAMES[form]} adapters of")
    assert f" {NAMES[form]}, causal language modelling" in of["project"]["summary"]
    assert of["choice"]["adapter"] == form
    shared = form != "dora"  # DoRA adds its update to a copy of the weight in the input's dtype
    assert ("share_inputs(model)" in of["edits"]["after_model"]) == shared == ("adapter_inputs" in of["modules"])


def test_dropout_is_a_default_and_can_be_asked_for():
    plain, asked = document(), document(lora_dropout=0.05)
    assert plain["config"]["lora"]["lora_dropout"] == 0.0 and "PEFT" in plain["defaults"]["lora_dropout"]
    assert asked["config"]["lora"]["lora_dropout"] == 0.05 and "lora_dropout" not in asked["defaults"]
    assert asked["estimate"]["step_seconds"] > plain["estimate"]["step_seconds"]


def test_the_scale_of_a_default_alpha():
    """alpha / rank is 2 at every rank; alpha / sqrt(rank) is the same at rank 16."""
    for form, alphas in {"lora": (32, 128), "dora": (32, 128), "rslora": (8, 8)}.items():
        assert (
            tuple(document(adapter=form, lora_rank=rank)["config"]["lora"]["lora_alpha"] for rank in (16, 64)) == alphas
        )


@pytest.mark.parametrize("asked", [{"adapter": "dora"}, {"lora_dropout": 0.1}])
def test_what_is_said_of_adapters_that_nobody_trains_is_refused(asked):
    with pytest.raises(UsageError, match="--train full trains none"):
        document(train="full", **asked)
    with pytest.raises(UsageError, match="--mode infer trains nothing"):
        document(mode="infer", train="full", **asked)


def test_a_form_without_adapters_is_refused():
    with pytest.raises(UsageError, match="--train full trains none"):
        document(train="full", adapter="dora")


def test_dora_is_for_linear_layers():
    dora = find_technique("adapter", "dora")
    assert dora.obstacle(on(H100, train="lora", adapter="dora")) is None
    assert "ParamWrapper" in dora.obstacle(on(H100, mixture(), train="lora", adapter="dora"))
    assert "--adapter lora" in dora.obstacle(on(H100, train="lora"))


def test_dora_costs_time_and_memory():
    of = case(H100, llama(), train="lora")
    run = Execution(train="lora", lora_rank=16, weights_dtype="bfloat16", autocast_dtype="bfloat16", seq_len=2048)
    plain, dora = cost(of).estimate(run), cost(of).estimate(replace(run, adapter="dora"))
    assert dora.step_seconds > 1.1 * plain.step_seconds
    assert dora.peak_memory_gib > plain.peak_memory_gib


@pytest.mark.parametrize("task", ["causal-lm", "sft", "text-classification"])
@pytest.mark.parametrize(("device", "dtype"), [(T4, "float16"), (H100, "bfloat16")])
@pytest.mark.parametrize("train", ["lora", "qlora"])
def test_adapters_stay_float32_beside_16_bits(task, device, dtype, train):
    """fp16's scaler has no gradients of bf16, and an update of a 16-bit adapter would be rounded: where a library would leave a
    trained weight in 16 bits, train.py makes it float32."""
    from generator.emit.first_step import expect_dtypes

    of = on(device, train=train, task=task, labels=2)
    plan = decide(of, cost(of))
    assert expect_dtypes(plan.best.execution)["trained"] == "float32"
    arguments = {a.name: a.code for a in plan.edits.model_arguments}
    assert arguments["dtype"] == f"torch.{dtype}"
    written = "\n".join((*plan.edits.after_model, *plan.edits.after_trainer))
    widened = (train, task) not in (("qlora", "causal-lm"), ("lora", "causal-lm"), ("lora", "sft"))
    assert ("weight.data = weight.data.float()" in written) == widened


STATE_SPACE = ["mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h", "jamba", "bamba", "granitemoehybrid"]
ROUTED = ["phimoe", "llama4_text", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "hy_v4", "gemma3n_text"]


@pytest.mark.parametrize("model_type", STATE_SPACE + ROUTED)
def test_each_adapter_learns(model_type):
    """PEFT ends the run for a layer that is no plain product, or makes an adapter without a gradient: the scan of a state-space model
    and AltUp read weights by themselves, routers return several tensors, an indexer chooses keys without gradients."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    config = configs(model_type)[0]
    of = case(H100, replace(describe(configs("llama")[0], "x"), model_type=model_type), train="lora")
    (statement,) = make_adapter_edits(of).setup
    names = {"LoraConfig": peft.LoraConfig, "CONFIG": {"lora": {"r": 4}}}
    exec(statement, names)
    model = transformers.AutoModelForCausalLM.from_config(make_config(config))
    for weight in model.parameters():
        if not weight.any():  # gemma3n's fresh scales are zeros, which let no gradient through
            weight.data.fill_(0.1)
    model = peft.get_peft_model(model, names["adapter"])
    tokens = torch.randint(5, 60, (1, 300 if model_type == "deepseek_v4" else 8))  # its compressor joins 128
    model(input_ids=tokens, labels=tokens).loss.backward()
    out = {name: p.grad for name, p in model.named_parameters() if "lora_B" in name}
    assert len(out) >= 2 and not [name for name, grad in out.items() if grad is None or not grad.any()]


# ---- what share_inputs changes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_shared_inputs_give_the_same_loss_and_gradients(load, dtype):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    config = transformers.LlamaConfig(**{k: v for k, v in MODEL.items() if k != "architectures"})
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    for weight in trained:
        weight.data.normal_(0, 0.02)
    tokens = torch.randint(0, 300, (2, 32))

    def compute() -> tuple[float, list, int]:
        kept: dict[int, int] = {}
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}

        def note(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
            torch.autocast("cpu", getattr(torch, dtype)),
        ):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        gradients = [p.grad.clone() for p in trained]
        model.zero_grad()
        return loss.item(), gradients, sum(size for place, size in kept.items() if place not in own)

    before = compute()
    load("adapter_inputs").share_inputs(model)
    after = compute()
    assert after[0] == before[0]
    assert all(torch.equal(a, b) for a, b in zip(after[1], before[1], strict=True))
    assert after[2] < 0.95 * before[2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tiled", [False, True])
def test_an_adapted_model_answers_where_there_is_no_autocast(load, form, tiled):
    """SampleAnswers asks before the first step, and `generate` is not the forward pass that Accelerate wraps."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    config = transformers.LlamaConfig(**{k: v for k, v in MODEL.items() if k != "architectures"})
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    adapter = peft.LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM", **SWITCHES[form]
    )
    model = peft.get_peft_model(model, adapter).eval()
    asked = {"input_ids": torch.arange(3, 9)[None], "max_new_tokens": 4, "do_sample": False}
    before = model.generate(**asked)
    if form != "dora":
        load("adapter_inputs").share_inputs(model)
    if tiled:
        load("tiled_layers").tile_layers(model)
    assert torch.equal(model.generate(**asked), before)


# ---- trained for real


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_trained_resumed_served_and_merged(tmp_path, form):
    """A run that is stopped after three of six steps ends as one that is not."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from test_moving import make_tokenizer

    folder = tmp_path / "small"
    folder.mkdir()
    make_tokenizer(folder)
    torch.manual_seed(0)
    config = {k: v for k, v in MODEL.items() if k != "architectures"} | {"vocab_size": 2000}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).save_pretrained(folder)
    (tmp_path / "d.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    project = tmp_path / "p"
    places = ("--model", folder, "--data", tmp_path / "d.txt", "--hardware", "cpu:1", "--eval", "none")
    words = (
        *places,
        "--train",
        "lora",
        "--adapter",
        form,
        "--seq-len",
        "16",
        "--global-batch",
        "4",
        "--max-steps",
        "6",
    )
    words += ("--learning-rate", "0.01", "--pin", "compile=off", "--no-smoke", "--offline", "--yes")
    done = CliRunner().invoke(perfgen, list(map(str, ["init", project, *words])), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"Train {NAMES[form]} adapters" in (project / "train.py").read_text()
    assert NAMES[form] in (project / "README.md").read_text() and NAMES[form] in (project / "PLAN.md").read_text()

    def run(*command: str) -> str:
        words = [sys.executable, *command]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("train.py", "--output_dir", "runs/whole", "--save_steps", "3")
    stopped = "import sys, train, stopping\nfrom transformers import TrainerCallback, Trainer\n"
    stopped += "class Stop(TrainerCallback):\n    def on_step_end(self, args, state, control, **kw):\n"
    stopped += "        control.should_training_stop = state.global_step == 4\n"
    stopped += "plain = Trainer.__init__\ndef make(self, *a, **kw):\n    plain(self, *a, **kw)\n    self.add_callback(Stop())\n"
    (project / "stopped.py").write_text(stopped + "Trainer.__init__ = make\ntrain.main()\n")
    half = ("--output_dir", "runs/half", "--save_steps", "3")
    subprocess.run([sys.executable, "stopped.py", *half], cwd=project, capture_output=True, check=False, timeout=500)
    for name in ("run.json", "adapter_model.safetensors", "checkpoint-4"):
        gone = project / "runs" / "half" / name
        subprocess.run(["rm", "-rf", str(gone)], check=True)
    assert "resuming from" in run("train.py", *half)
    reports = {name: json.loads((project / "runs" / name / "run.json").read_text()) for name in ("whole", "half")}
    assert NAMES[form].lower() in json.dumps(reports["whole"]).lower()
    assert reports["half"]["losses"][-1] == pytest.approx(reports["whole"]["losses"][-1], rel=1e-5)
    saved = yaml.safe_load((project / "runs" / "whole" / "adapter_config.json").read_text())
    assert {k: v for k, v in saved.items() if k in ("use_dora", "use_rslora")} == {
        "use_dora": form == "dora",
        "use_rslora": form == "rslora",
    }
    asked = ("--prompt", "the quick", "--max_new_tokens", "8", "--json", "--run", "runs/whole")
    answer = json.loads(run("infer.py", *asked))["answer"]
    run("merge.py", "--run", "runs/whole")
    assert json.loads(run("infer.py", *asked[:-1], "runs/whole/merged"))["answer"] == answer


@pytest.mark.parametrize(("model_type", "adapted"), [("qwen3_moe", True), ("gpt_oss", False), ("llama", None)])
def test_a_mixture_says_whether_its_experts_get_adapters(tmp_path, model_type, adapted):
    (tmp_path / "config.json").write_text(json.dumps(configs(model_type)[0] | {"architectures": ["X"]}))
    request = {"config": str(tmp_path / "config.json"), "seq_len": 16}
    notes = [note["text"] for note in document(**request)["notes"] if "experts" in note["text"]]
    assert any("of each of its experts too" in note for note in notes) == (adapted is True)
    assert any("its experts stay as they are" in note for note in notes) == (adapted is False)
    assert not any("adapters" in note["text"] for note in document(**request, train="full")["notes"])
    if adapted:  # PEFT: lora.ParamWrapper does not work with lora_dropout != 0
        with pytest.raises(UsageError, match="without dropout"):
            document(**request, lora_dropout=0.1)
    else:
        assert document(**request, lora_dropout=0.1)["config"]["lora"]["lora_dropout"] == 0.1
