"""Checkpoints that are quantized already: planned by the bytes that they have, for an engine that runs them, else refused with reasons."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.errors import PerfgenError, UsageError
from generator.pipeline import document_request

LLAMA = json.loads((Path(__file__).parents[1] / "examples" / "models" / "llama-3.1-8b.json").read_text())
GROUPED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FLOATS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
INTEGERS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}


def compress(form: str, weights: dict) -> dict:
    """As llm-compressor writes it."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    settings = {"format": form, "quantization_status": "compressed", "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **settings}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "load_in_8bit": False}
NF4 |= {"bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_use_double_quant": True}
CHECKPOINTS = {
    # GiB of the published files of Llama 3.1 8B: GPTQ and AWQ 5.74 GB (hugging-quants), FP8 9.1 GB, w8a8 9.1 GB, w4a16 5.7 GB
    # (RedHatAI), NF4 5.7 GB (unsloth)
    "gptq": (GPTQ, "vllm", 5.35),
    "awq": (AWQ, "vllm", 5.35),
    "w4a16": (compress("pack-quantized", GROUPED), "vllm", 5.35),
    "w8a8-float": (compress("float-quantized", FLOATS), "vllm", 8.46),
    "w8a8-int": (compress("int-quantized", INTEGERS), "vllm", 8.46),
    "fp8": (FP8, "vllm", 8.46),
    "nf4": (NF4, "transformers", 5.31),
}


def plan(folder: Path, quantization: dict | None, hardware: str, config: dict = LLAMA, **told):
    path = folder / "config.json"
    path.write_text(json.dumps(config | ({"quantization_config": quantization} if quantization else {})))
    asked = {"model": "owner/name", "tokenizer": "owner/name", "mode": "infer", "offline": True}
    return document_request(Request(**asked, config=str(path), hardware=hardware, **told))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_bytes_and_engine_are_those_of_the_format(name, tmp_path):
    quantization, engine, gib = CHECKPOINTS[name]
    document = plan(tmp_path, quantization, "1xl40s")
    assert (document.choice["quantization"], document.choice["engine"]) == ("stored", engine)
    assert document.estimate.memory_gib["weights"] == pytest.approx(gib, rel=0.04)
    assert document.config.serving.weights == "checkpoint"
    if engine == "vllm":  # it reads config.json itself
        assert "quantization" not in document.config.serving.flags
    plain = plan(tmp_path, None, "1xl40s")
    assert document.estimate.memory_gib["weights"] < 0.6 * plain.estimate.memory_gib["weights"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_sizes_alone_say_how_the_served_weights_are_stored(name, tmp_path):
    """The config.json of a checkpoint is planned as the checkpoint is; trained from random weights, it holds plain ones."""
    quantization, engine, gib = CHECKPOINTS[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"quantization_config": quantization}))
    document = document_request(Request(model=str(path), mode="infer", hardware="1xl40s", offline=True))
    assert (document.choice["quantization"], document.choice["engine"]) == ("stored", engine)
    assert document.estimate.memory_gib["weights"] == pytest.approx(gib, rel=0.04)
    trained = document_request(Request(model=str(path), hardware="8xh100", offline=True))
    assert trained.project.from_scratch and not trained.project.quantized


@pytest.mark.parametrize("name", ["gptq", "w8a8-float", "fp8"])
def test_where_no_engine_runs_them_each_says_why(name, tmp_path):
    quantization = CHECKPOINTS[name][0]
    with pytest.raises(PerfgenError) as error:
        plan(tmp_path, quantization, "cpu:16,128gb")
    method = quantization["quant_method"]
    assert f"the checkpoint is quantized ({method}), and of such it runs those of bitsandbytes alone" in str(
        error.value
    )


def test_experts_of_gpt_oss_are_held_in_four_bits(tmp_path):
    config = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "head_dim": 64}
    config |= {"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 201088}
    config |= {"intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128}
    config |= {"layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072}
    document = plan(tmp_path, {"quant_method": "mxfp4"}, "1xl40s", config)
    assert document.choice["engine"] == "vllm"
    assert document.estimate.memory_gib["weights"] == pytest.approx(12.8, rel=0.08)  # 13.76 GB of published files


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": GROUPED}, "b": {"weights": FLOATS}}},
        {"quant_method": "compressed-tensors"},
    ],
)
def test_what_has_no_formula_is_not_priced_as_plain_weights(quantization, tmp_path):
    with pytest.raises(PerfgenError, match=r"has no formula|\(aqlm\), and of such it runs"):
        plan(tmp_path, quantization, "1xl40s")


TINY = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def test_new_weights_do_not_say_that_they_are_packed(tmp_path):
    """A model of random weights is saved with the config that it was made from, and loaded by what that says."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | TINY | {"num_key_value_heads": 2, "quantization_config": FP8}))
    data = tmp_path / "data.txt"
    data.write_text("some text\n" * 9999)
    asked = {"data": str(data), "hardware": "1xa100-sxm-80gb", "seq_len": 16, "offline": True}
    document = document_request(Request(model=str(path), **asked))
    render(to_json(document), tmp_path / "p")
    (statement,) = re.findall(
        r"^    (del config\..*?)(?:  #.*)?$", (tmp_path / "p" / "train.py").read_text(), re.MULTILINE
    )
    config = AutoConfig.from_pretrained(tmp_path)
    exec(statement, {"config": config})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def test_amds_boards_run_the_formats_that_vllm_lists_for_them(tmp_path):
    """Its table of hardware has fp8 alone for AMD."""
    assert plan(tmp_path, FP8, "1xmi300x").choice["engine"] == "vllm"
    with pytest.raises(UsageError, match=r"quantized .gptq., and of such it runs those of fp8 alone"):
        plan(tmp_path, GPTQ, "1xmi300x", pins=(("engine", "vllm"),))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_gptq_that_is_not_rounded_around_0_is_refused_before_an_engine_does(engine, tmp_path):
    """Both raise "Unsupported quantization config: bits=4, sym=False" as they load it."""
    pins = (("engine", engine),)
    assert plan(tmp_path, GPTQ, "1xl40s", pins=pins).choice["engine"] == engine
    with pytest.raises(UsageError, match=r"the checkpoint's are not \(sym: false\)"):
        plan(tmp_path, GPTQ | {"sym": False}, "1xl40s", pins=pins)


def test_fp8_weights_are_unpacked_by_the_command_of_their_refusal(tmp_path, monkeypatch):
    """Saved without more, the plain weights were packed again, and read as garbage by whoever took config.json at its word."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file
    from test_data_formats import make_tokenizer

    folder, plain = tmp_path / "packed", tmp_path / "plain"
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 128, "head_dim": 64}
    config = transformers.Qwen3MoeConfig(**TINY, **experts, num_key_value_heads=1, tie_word_embeddings=False)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    make_tokenizer(folder)
    weights, packed = load_file(folder / "model.safetensors"), {}
    for name, weight in weights.items():
        packed[name] = weight
        if "_proj." in name:
            rows, columns = (size // 128 or 1 for size in weight.shape)
            blocks = weight.float().reshape(rows, -1, columns, 128)
            scales = blocks.abs().amax((1, 3)) / 448
            packed[name] = (blocks / scales[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = scales
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"quantization_config": FP8}))
    with pytest.raises(UsageError, match="cannot adapt packed") as refused:
        document_request(Request(model=str(folder), hardware="1xl40s", train="lora", offline=True))
    program, code, *places = shlex.split(refused.value.hint.partition("into PLAIN: ")[2])[1:]
    assert (program, places) == ("-c", ["MODEL", "PLAIN"])
    monkeypatch.setattr(sys, "argv", ["-c", str(folder), str(plain)])
    exec(code, {})
    written = load_file(plain / "model.safetensors")
    assert written.keys() == weights.keys() and "quantization_config" not in (plain / "config.json").read_text()
    for name, weight in weights.items():
        assert written[name].dtype == torch.bfloat16
        torch.testing.assert_close(written[name], weight, rtol=0.1, atol=0.01)
    assert document_request(Request(model=str(plain), hardware="1xl40s", train="lora", offline=True))


@pytest.mark.parametrize("name", ["gptq", "awq", "w4a16", "fp8", "w8a8-float", None])
def test_parts_of_packed_layers_hold_whole_groups(name, tmp_path):
    """Qwen2.5-14B: an eighth of its 13,824 inputs are 13.5 groups of 128, at which vLLM ends."""
    sizes = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48, "num_attention_heads": 40}
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "num_key_value_heads": 8,
        "vocab_size": 152064,
    }
    quantization = CHECKPOINTS[name][0] if name else None
    document = plan(tmp_path, quantization, "8xl4", config | sizes, optimize_for="latency")
    grouped = name is not None and name != "w8a8-float"
    assert document.layout.tp == (4 if grouped else 8)
