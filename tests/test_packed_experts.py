"""gpt-oss as it is published, its experts packed in mxfp4: trained as the 16-bit weights that they stand for, and saved as such."""

from __future__ import annotations

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
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
PACKING = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]}
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def pack_experts(folder: Path) -> None:
    """Each expert's matrix as blocks of 32 values of 4 bits, and a scale of each block."""
    path, weights = folder / "model.safetensors", {}
    for name, weight in load_file(path).items():
        if name.endswith(EXPERTS):
            experts, inputs, outputs = weight.shape
            blocks = (experts, outputs, inputs // 32)
            weights[f"{name}_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8)
            weights[f"{name}_scales"] = torch.randint(119, 123, blocks, dtype=torch.uint8)
        else:
            weights[name] = weight
    save_file(weights, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": PACKING}))


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("packed") / "model"
    torch.manual_seed(0)
    GptOssForCausalLM(GptOssConfig(**SIZES)).to(torch.bfloat16).save_pretrained(folder)
    pack_experts(folder)
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


def run(project: Path, *command: str) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


def load_plain(folder: Path):
    """By whoever knows nothing of how it came about: every weight is there, and none is packed."""
    from transformers import AutoModelForCausalLM

    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    names = [name for path in folder.glob("model*.safetensors") for name in load_file(path)]
    assert names and not [name for name in names if name.endswith(("_blocks", "_scales"))]
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    return model.eval()


TOKENS = torch.arange(4, 40)[None]
ASKED = {"learning_rate": 1e-2, "pins": (("compile", "off"), ("precision", "fp32"))}


def test_an_adapter_is_merged_into_plain_weights_that_answer_the_same(packed, tmp_path):
    """They were saved under the names of packed ones: whoever read them had random experts."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, Mxfp4Config

    project = render_small_project(tmp_path, model=str(packed), train="lora", **ASKED)
    run(project, "train.py")
    run(project, "merge.py", "--dtype", "float32")
    base = AutoModelForCausalLM.from_pretrained(
        packed, dtype=torch.float32, quantization_config=Mxfp4Config(dequantize=True)
    )
    adapted = PeftModel.from_pretrained(base, project / "runs").eval()
    merged = load_plain(project / "runs" / "merged")
    with torch.inference_mode():
        expected, outputs = adapted(TOKENS).logits, merged(TOKENS).logits
    torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4)
    answers = [
        model.generate(input_ids=TOKENS, max_new_tokens=20, do_sample=False, eos_token_id=-1).tolist()
        for model in (adapted, merged)
    ]
    assert answers[0] == answers[1]
    assert run(project, "infer.py", "--prompt", "the fox", "--max_new_tokens", "4")


def test_a_full_training_starts_from_them_goes_on_and_saves_plain_weights(packed, tmp_path):
    from transformers import AutoModelForCausalLM, Mxfp4Config

    project = render_small_project(tmp_path, model=str(packed), **ASKED | {"learning_rate": 1e-4})
    saves = ("--save_steps", "4")
    run(project, "train.py", "--output_dir", "whole", *saves)
    shutil.copytree(project / "whole" / "checkpoint-4", project / "resumed" / "checkpoint-4")
    run(project, "train.py", "--output_dir", "resumed", *saves)
    whole, resumed = (load_plain(project / name).state_dict() for name in ("whole", "resumed"))
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    unpacked = AutoModelForCausalLM.from_pretrained(
        packed, dtype=torch.float32, quantization_config=Mxfp4Config(dequantize=True)
    ).state_dict()
    for name in (name for name in whole if name.endswith(EXPERTS)):
        change = (whole[name] - unpacked[name]).abs().max()
        assert 0 < change < 0.01 * unpacked[name].abs().max(), name  # trained, from where they were
