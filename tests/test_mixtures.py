"""Mixtures of experts, trained for real: resumed they go on as the run that nobody ended, experts and all."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from projects import TEXT, render_small_project
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """A saved Qwen3-MoE with a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = tmp_path_factory.mktemp("mixture") / "model"
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES)).save_pretrained(folder)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=["<e>"], initial_alphabet=alphabet)
    )
    PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<e>", eos_token="<e>", pad_token="<e>").save_pretrained(
        folder
    )
    return folder


def start(project: Path, output: str, *words: str) -> dict:
    """The losses of a training, by step."""
    parallel = json.loads((project / "plan.json").read_text())["parallel"]
    program, *rest = parallel["launcher"] if parallel else ("python",)
    command = [str(Path(sys.executable).with_name(program)), *rest, "train.py", "--output_dir", output, *words]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return json.loads((project / output / "run.json").read_text())


@pytest.mark.parametrize(("hardware", "asked"), [("cpu:1", {}), ("2xcpu:1", {}), ("cpu:1", {"from_scratch": True})])
def test_a_resumed_mixture_has_the_experts_of_its_checkpoint(mixture, tmp_path, hardware, asked):
    """It began again with those of the start, and nothing but a line of the log said so."""
    pins = {"compile": "off", "precision": "fp32"} | ({"parallelism": "ddp"} if hardware != "cpu:1" else {})
    request = {"model": str(mixture), "hardware": hardware, "pins": tuple(pins.items()), "learning_rate": 1e-2}
    project = render_small_project(tmp_path, **request, **asked)
    saves = ("--save_steps", "4", "--logging_steps", "1")
    whole = start(project, "whole", *saves)
    shutil.copytree(project / "whole" / "checkpoint-4", project / "resumed" / "checkpoint-4")
    resumed = start(project, "resumed", *saves)
    assert resumed["losses"][-1] == pytest.approx(whole["losses"][-1], rel=1e-6)
    expected, weights = (load_file(project / name / "model.safetensors") for name in ("whole", "resumed"))
    assert [name for name in expected if not torch.equal(expected[name], weights[name])] == []
    first = load_file(project / "whole" / "checkpoint-4" / "model.safetensors")
    experts = [name for name in expected if ".experts." in name]
    assert experts and not any(torch.equal(first[name], expected[name]) for name in experts)


def test_the_best_model_of_a_mixture_is_the_checkpoint_s(mixture, tmp_path):
    project = render_small_project(tmp_path, model=str(mixture), eval="0.1", learning_rate=1e-2)
    words = ("--load_best_model_at_end", "true", "--eval_strategy", "steps", "--eval_steps", "2", "--save_steps", "2")
    words += ("--metric_for_best_model", "eval_loss", "--greater_is_better", "true")  # the first is the best
    start(project, "best", *words)
    best = load_file(project / "best" / "checkpoint-2" / "model.safetensors")
    weights = load_file(project / "best" / "model.safetensors")
    assert [name for name in best if not torch.equal(best[name], weights[name])] == []


CHATS = "\n".join(
    json.dumps(
        {
            "messages": [
                {"role": "user", "content": f"a fox {n}"},
                {"role": "assistant", "content": "dog " * (1 + n % 4)},
            ]
        }
    )
    for n in range(40)
)
SFT = {"task": "sft", "data": CHATS, "name": "d.jsonl", "seq_len": 48}


def logs(project: Path, output: str) -> list[dict]:
    """What was logged of each step."""
    state = json.loads((project / output / "checkpoint-8" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


@pytest.mark.parametrize(
    "asked", [{}, SFT, SFT | {"train": "lora"}, {"from_scratch": True}], ids=["full", "sft", "sft-lora", "from-scratch"]
)
def test_a_mixture_is_trained_with_the_loss_of_its_routers(mixture, tmp_path, asked):
    project = render_small_project(tmp_path, model=str(mixture), eval="0.2", **asked)
    config = project / "config.yaml"
    assert "router_loss: null" in config.read_text()
    words = ("--logging_steps", "1", "--save_steps", "8", "--eval_steps", "8")
    start(project, "with", *words)
    config.write_text(config.read_text().replace("router_loss: null", "router_loss: 0"))
    start(project, "without", *words)
    both, alone = logs(project, "with")[0], logs(project, "without")[0]
    shutil.copytree(project / "with" / "checkpoint-8", project / "other" / "checkpoint-8")
    with pytest.raises(AssertionError, match=r"loss of the routers: times 0\.001 then, times 0 now"):
        start(project, "other", *words, "--max_steps", "9")
    assert "aux_loss" not in alone
    assert both["loss"] - alone["loss"] == pytest.approx(0.001 * both["aux_loss"], rel=0.02)
    first = [json.loads((project / name / "run.json").read_text())["evaluations"][0] for name in ("with", "without")]
    assert first[0]["loss"] == pytest.approx(first[1]["loss"], rel=1e-6)  # before the first step, of the tokens alone
    if asked.get("train") != "lora":
        assert not json.loads((project / "with" / "config.json").read_text()).get("output_router_logits")


def test_two_processes_have_the_loss_of_one(mixture, tmp_path):
    losses = []
    for hardware in ("cpu:1", "2xcpu:1"):
        pins = {"compile": "off", "precision": "fp32"} | ({"parallelism": "ddp"} if hardware != "cpu:1" else {})
        project = render_small_project(
            tmp_path / hardware.replace(":", "-"), model=str(mixture), hardware=hardware, pins=tuple(pins.items())
        )
        split = (
            "--per_device_train_batch_size",
            "2",
            "--gradient_accumulation_steps",
            "1" if "2x" in hardware else "2",
        )
        config = project / "config.yaml"
        config.write_text(config.read_text().replace("router_loss: null", "router_loss: 1.0"))
        start(project, "run", "--logging_steps", "1", "--save_steps", "8", *split)
        losses.append([entry["loss"] for entry in logs(project, "run")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


DENSE = {
    "granitemoehybrid": {
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "mamba_n_heads": 8,
        "layer_types": ["full_attention"] * 2,
    },
    "qwen3_moe": {"mlp_only_layers": [0, 1]},
    "doge": {"is_moe": False},
}


@pytest.mark.parametrize("model_type", DENSE)
def test_a_dense_model_of_such_a_type_answers(mixture, tmp_path, model_type):
    """SFTTrainer asked it for the logits of routers, which it has not: the first step raised."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    folder = tmp_path / "model"
    shutil.copytree(mixture, folder)
    kind = CONFIG_MAPPING[model_type]
    known = {field.name for field in dataclasses.fields(kind)}
    config = kind(**{name: value for name, value in (SIZES | DENSE[model_type]).items() if name in known})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    project = render_small_project(tmp_path, model=str(folder), **SFT)
    assert len(start(project, "runs")["losses"]) == 8


@pytest.mark.parametrize("form", ["lora", "rslora"])
def test_adapters_of_experts_go_on_and_are_merged(mixture, tmp_path, form):
    """PEFT adapts a block's experts as one tensor: resumed and merged, they answer as they did."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    project = render_small_project(tmp_path, model=str(mixture), train="lora", adapter=form, learning_rate=1e-2)
    saves = ("--save_steps", "4")
    start(project, "whole", *saves)
    shutil.copytree(project / "whole" / "checkpoint-4", project / "resumed" / "checkpoint-4")
    start(project, "resumed", *saves)
    whole, resumed = (load_file(project / name / "adapter_model.safetensors") for name in ("whole", "resumed"))
    assert any(".experts." in name for name in whole) and all(weight.any() for weight in whole.values())
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    command = [sys.executable, "merge.py", "--run", "whole"]
    subprocess.run(command, cwd=project, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True, timeout=600)
    base = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    tokens = torch.arange(4, 40)[None]
    with torch.inference_mode():
        plain = base(tokens).logits
        expected = PeftModel.from_pretrained(base, project / "whole").eval()(tokens).logits
        merged, loading = AutoModelForCausalLM.from_pretrained(
            project / "whole" / "merged", dtype=torch.float32, output_loading_info=True
        )
        assert not loading["missing_keys"] and not loading["unexpected_keys"]
        outputs = merged.eval()(tokens).logits
    torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4)
    assert (outputs - plain).abs().max() > 0.01
