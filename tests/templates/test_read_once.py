"""What a process that reads no weights holds in their place (FSDP2)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaves import FRAGMENTS, load_leaf

pytest.importorskip("transformers")
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

WIDE = 1 << 26
"""elements of a weight: a quarter of a GiB"""


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.parametrize("tied", [True, False])
def test_each_weight_has_a_place_of_its_own(tmp_path, tied):
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**shape, vocab_size=100, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="meta")
    with torch.device("meta"):
        model.model.register_buffer("balance", torch.zeros(4))

    load_leaf("read_once").hold_places(model)

    weights = list(model.parameters())
    assert {tensor.device.type for tensor in (*weights, *model.buffers())} == {"cpu"}
    assert len({weight.data_ptr() for weight in weights}) == len(weights)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied
    assert "model.balance" in model.state_dict()


BUFFERS = r"""
import os, sys

import torch
import torch.distributed as dist
from read_once import hold_places
from transformers import AutoConfig, AutoModelForCausalLM

torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
folder, sizes = sys.argv[1], dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
for kind in ("llama", "gemma3_text", "qwen3", "modernbert-decoder", "gpt_oss", "mpt", "falcon", "gpt_neox", "mamba"):
    alone = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, vocab_size=300, pad_token_id=0))
    alone.save_pretrained(folder)
    os.environ["LOCAL_RANK"] = "1"
    model = AutoModelForCausalLM.from_pretrained(folder, device_map="meta")
    hold_places(model)
    kept = set(model.state_dict())
    names = [name for name, _ in alone.named_buffers() if name not in kept]
    buffers = dict(model.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in alone.named_buffers() if name in names), kind
    print(kind, len(names))
"""


def test_what_is_not_saved_is_computed_on_every_process(tmp_path):
    """Rotations and scales: nobody sends them (Transformers' own way where ACCELERATE_USE_FSDP says so, in its processes)."""
    given = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "PYTHONPATH": str(FRAGMENTS)}
    words = [sys.executable, "-c", BUFFERS, str(tmp_path)]
    done = subprocess.run(words, env=os.environ | given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert counts["llama"] == "2" and int(counts["gemma3_text"]) > 2


UNPACKED = r"""
import os, sys

import torch
import torch.distributed as dist
from read_once import hold_places
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, Mxfp4Config
from test_packed_experts import SIZES, pack_experts
from pathlib import Path

torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
folder = Path(sys.argv[1])
GptOssForCausalLM(GptOssConfig(**SIZES)).to(torch.bfloat16).save_pretrained(folder)
pack_experts(folder)
how = {"quantization_config": Mxfp4Config(dequantize=True), "dtype": torch.float32}
whole = AutoModelForCausalLM.from_pretrained(folder, **how)
os.environ["LOCAL_RANK"] = "1"
model = AutoModelForCausalLM.from_pretrained(folder, **how, device_map="meta")
assert all(weight.is_meta for weight in model.parameters())
hold_places(model)
places = dict(model.named_parameters())
for name, weight in whole.named_parameters():
    assert (places[name].shape, places[name].dtype, places[name].device.type) == (weight.shape, weight.dtype, "cpu"), name
buffers = dict(model.named_buffers())
for name, buffer in whole.named_buffers():
    assert torch.equal(buffers[name], buffer), name
print(len(buffers))
"""


def test_a_packed_checkpoint_is_unpacked_by_one_process(tmp_path):
    """gpt-oss as it is published: the others have its plain weights' places, and compute what no file holds."""
    given = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    given["PYTHONPATH"] = os.pathsep.join((str(FRAGMENTS), str(Path(__file__).resolve().parent.parent)))
    words = [sys.executable, "-c", UNPACKED, str(tmp_path)]
    done = subprocess.run(words, env=os.environ | given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 2


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt_oss", "falcon", "mamba"])
def test_new_weights_are_drawn_by_the_first_process_alone(monkeypatch, kind):
    """What nobody sends (rotations, scales) every process computes; the numbers are those of one process."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, **shape, vocab_size=300, pad_token_id=0)
    monkeypatch.setitem(sys.modules, "read_once", load_leaf("read_once"))
    draw_once = load_leaf("drawn_weights").draw_once
    torch.manual_seed(0)
    alone = AutoModelForCausalLM.from_config(config)
    torch.manual_seed(0)
    first = draw_once(AutoModelForCausalLM, config, is_first=True, dtype=torch.float32)
    before = torch.random.get_rng_state()
    other = draw_once(AutoModelForCausalLM, config, is_first=False, dtype=torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)
    expected, drawn, places = (dict(model.named_parameters()) for model in (alone, first, other))
    assert all(torch.equal(drawn[name], weight) for name, weight in expected.items())
    assert {name: place.shape for name, place in places.items()} == {name: w.shape for name, w in expected.items()}
    assert {place.device.type for place in places.values()} == {"cpu"}
    assert len({place.data_ptr() for place in places.values()}) == len(places)
    kept, buffers = set(alone.state_dict()), dict(other.named_buffers())
    assert all(torch.equal(buffers[name], b) for name, b in alone.named_buffers() if name not in kept)


def test_places_take_no_memory():
    with torch.device("meta"):
        layer = torch.nn.Linear(WIDE, 1)
    before = read_resident_bytes()
    load_leaf("read_once").hold_places(layer)
    assert layer.weight.numel() == WIDE and read_resident_bytes() - before < WIDE
