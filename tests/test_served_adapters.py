"""A folder with an adapter alone is served beside the model that it was trained for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_flags import write_launcher
from peft import LoraConfig, PeftModel, get_peft_model
from serving_projects import make_tiny_model
from transformers import AutoModelForCausalLM, GPT2Config

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.errors import SourceError, UsageError
from generator.pipeline import document_request

STARTED = """
import json, server
server.become = lambda module, words: print(json.dumps(words))
server.main()
"""
PROMPT = torch.tensor([[5, 6, 7, 8, 9]])


def train_adapter(folder: Path, base: Path, **settings) -> Path:
    """One that changes answers, of every layer."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    asked = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | settings
    adapted = get_peft_model(model, LoraConfig(**asked))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    adapted.save_pretrained(folder)
    return folder


@pytest.fixture
def base(tmp_path) -> Path:
    return make_tiny_model(tmp_path / "base")


def plan(folder: Path, **told):
    return document_request(Request(model=str(folder), mode="infer", **{"hardware": "1xrtx-4090"} | told))


def test_vllm_takes_it_by_its_flags_and_the_answers_have_its_name(base, tmp_path):
    document = plan(train_adapter(tmp_path / "mine", base, r=12), pins=(("engine", "vllm"),))
    flags = document.config.serving.flags
    assert flags["enable-lora"] is True and flags["max-lora-rank"] == 16
    assert (document.config.model, document.config.serving.name) == ("./model/base", "base-mine")
    assert document.config.adapter == "./adapter/mine" and "adapter" in document.estimate.memory_gib
    project = write_launcher(tmp_path / "p", "vllm", to_json(document), base / "config.json")
    (project / "adapter").mkdir()
    shutil.copytree(tmp_path / "mine", project / "adapter" / "mine")
    words = read_words(project)
    assert words[words.index("--served-model-name") + 1] == "base-mine-base"
    assert words[words.index("--lora-modules") + 1] == f"base-mine={project / 'adapter' / 'mine'}"


def read_words(project: Path) -> list[str]:
    """What the launcher would start vLLM with."""
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_vllm_is_not_given_an_adapter_of_a_model_that_it_takes_none_beside(tmp_path):
    """ "GPT2LMHeadModel does not support LoRA yet" ended its server at the start."""
    base = make_tiny_model(tmp_path / "base")
    AutoModelForCausalLM.from_config(GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=2)).save_pretrained(base)
    folder = train_adapter(tmp_path / "mine", base, fan_in_fan_out=True)
    with pytest.raises(UsageError, match="takes no adapter beside GPT2LMHeadModel: merge it"):
        plan(folder, pins=(("engine", "vllm"),))
    assert plan(folder).choice["engine"] == "transformers"


def test_what_takes_whole_models_alone_is_refused(base, tmp_path):
    lora = train_adapter(tmp_path / "lora", base)
    dora = train_adapter(tmp_path / "dora", base, use_dora=True)
    for folder, told, words in (
        (lora, {"hardware": "cpu", "pins": (("engine", "llama-cpp"),)}, r"it takes no adapter \(lora\) beside a model"),
        (dora, {"pins": (("engine", "vllm"),)}, r"it takes no adapter \(dora\)"),
        (lora, {"draft_model": str(base)}, "beside an adapter"),
    ):
        with pytest.raises(UsageError, match=words):
            plan(folder, **told)
    assert plan(dora).choice["engine"] == "transformers" == plan(lora, hardware="cpu").choice["engine"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "of type IA3"),
        ({"r": 0}, "rank 0"),
        ({"task_type": "SEQ_CLS"}, "for SEQ_CLS"),
        ({"modules_to_save": ["lm_head"]}, "with whole layers beside it"),
        ({"alora_invocation_tokens": [5, 6]}, "with alora_invocation_tokens, which nobody ran here"),
        ({"lora_bias": True}, "with lora_bias"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "with layer_replication"),
        ({"base_model_name_or_path": None}, "does not say of which model"),
        ({"base_model_name_or_path": "/gone/base"}, "holds an adapter of /gone/base: .*neither a folder"),
    ],
)
def test_what_is_not_served_so_says_why(base, tmp_path, change, words):
    folder = train_adapter(tmp_path / "lora", base)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SourceError, match=words):
        plan(folder)


UNEVEN = (
    {"rank_pattern": {"q_proj": 8}},
    {"alpha_pattern": {"v_proj": 64}, "use_rslora": True},
    {"bias": "all"},
)
"""Settings of which vLLM reads none: it would scale all layers by one rank and one alpha, and add no bias."""


@pytest.mark.parametrize("settings", UNEVEN, ids=lambda settings: next(iter(settings)))
def test_what_is_not_the_same_in_every_layer_is_for_transformers(base, tmp_path, settings):
    folder = train_adapter(tmp_path / "mine", base, **settings)
    with pytest.raises(UsageError, match=r"it takes no adapter \((patterned|biased)\)"):
        plan(folder, pins=(("engine", "vllm"),))
    assert plan(folder).choice["engine"] == "transformers"


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_rslora": True}, {"use_dora": True}, *UNEVEN],
    ids=lambda settings: next(iter(settings), "lora"),
)
def test_answers_are_those_of_peft_and_no_layer_of_it_is_left(base, tmp_path, load, settings):
    folder = train_adapter(tmp_path / "mine", base, **settings)
    load("loaded_weights")
    served = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain = served.generate(PROMPT, max_new_tokens=20, do_sample=False)
    load("served_adapter").add_adapter(served, folder)
    assert not [name for name, _ in served.named_modules() if "lora" in name]
    own = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    expected = own.generate(input_ids=PROMPT, max_new_tokens=20, do_sample=False)
    answer = served.generate(PROMPT, max_new_tokens=20, do_sample=False)
    assert answer.tolist() == expected.tolist() != plain.tolist()
