"""Memory of layers in tiles with offloaded inputs, against traces of the emitted fragment at 2 and 4 layers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from leaves import load_leaf

from generator.cost.execution import Execution
from generator.cost.memory import compute_training_moments
from generator.cost.static_memory import compute_static_memory
from tests.cost import traces
from tests.cost.architectures import ARCHITECTURES
from tests.cost.traces import Script, Traced, trace_step

BF16 = torch.bfloat16
LORA = Script(dtype=BF16, autocast=BF16, lora="all-linear", rank=16, batch=1, checkpoint=True)
SCRIPTS = {"LoRA": LORA, "dropout": replace(LORA, dropout=0.05), "DoRA": replace(LORA, dora=True)}
SCRIPTS |= {"full": replace(LORA, lora=None, autocast=None)}


class OnHost(torch.autograd.graph.saved_tensors_hooks):
    """``save_on_cpu`` where device and host are one: what is packed is no tensor any more, and comes back as a new one."""

    def __init__(self, **_given):
        super().__init__(lambda t: (t.shape, t.dtype), lambda packed: torch.empty(packed[0], dtype=packed[1]))


def trace(name: str, script: Script, layers: int, offload: bool) -> Traced:
    build = traces._model

    def build_emitted(config, script: Script):
        model = build(config, script)
        base = model.base_model.model if script.lora else model
        base.activation_checkpointing_enable({"use_reentrant": False}, offload=offload)
        load_leaf("tiled_layers").tile_layers(model)
        if script.lora and not script.dora:
            load_leaf("adapter_inputs").share_inputs(model)
        return model

    host = patch("transformers.modeling_utils.save_on_cpu", OnHost) if offload else nullcontext()
    with patch.object(traces, "_model", build_emitted), host:
        return trace_step(ARCHITECTURES[name].config(layers), replace(script, loss_inputs=(("use_cache", False),)))


def predict(name: str, script: Script, layers: int, offload: bool) -> dict[str, float]:
    """Bytes beside the model's own, at the moments of the backward pass."""
    run = Execution(
        micro_batch=1,
        seq_len=script.seq,
        weights_dtype="bfloat16",
        autocast_dtype="bfloat16" if script.autocast else None,
        train="lora" if script.lora else "full",
        lora_rank=script.rank if script.lora else 0,
        lora_dropout=script.dropout,
        lora_casts=script.dora,
        adapter="dora" if script.dora else "lora",
        checkpoint_every=1,
        checkpoint_offload=offload,
        tile_tokens=load_leaf("tiled_layers").TILE_TOKENS,
    )
    shape = ARCHITECTURES[name].shape(layers)
    moments = compute_training_moments(shape, run, compute_static_memory(shape, run))
    own = ("weights", "optimizer states")
    return {k: sum(v for part, v in parts.items() if part not in own) for k, parts in moments.items()}


def count_without_sums(shape, compute: float, run: Execution) -> float:
    """The flash kernel sums the gradient of its queries in float32 inside, which no operator shows."""
    return compute * (2 * shape.query + 2 * shape.key)


@pytest.mark.parametrize(
    ("name", "script", "seq", "layers", "offload"),
    [
        ("llama-3-8b", "LoRA", 8192, 2, False),
        ("llama-3-8b", "LoRA", 8192, 4, True),
        ("llama-3-8b", "dropout", 8192, 2, False),
        ("llama-3-8b", "DoRA", 8192, 2, False),
        pytest.param("qwen3-8b", "dropout", 32768, 2, True, marks=pytest.mark.slow),
        pytest.param("qwen3-8b", "DoRA", 32768, 2, True, marks=pytest.mark.slow),
        pytest.param("llama-3-8b", "LoRA", 32768, 2, True, marks=pytest.mark.slow),
        pytest.param("llama-3-8b", "LoRA", 32768, 4, False, marks=pytest.mark.slow),
        pytest.param("llama-3-8b", "LoRA", 32768, 4, True, marks=pytest.mark.slow),
        pytest.param("llama-3-8b", "full", 32768, 2, True, marks=pytest.mark.slow),
        pytest.param("qwen3-8b", "LoRA", 32768, 2, True, marks=pytest.mark.slow),
        pytest.param("qwen3-8b", "LoRA", 32768, 4, False, marks=pytest.mark.slow),
    ],
)
def test_the_backward_pass_of_long_sequences(name, script, seq, layers, offload, monkeypatch):
    monkeypatch.setattr("generator.cost.activations.count_attention_gradient_bytes", count_without_sums)
    of = replace(SCRIPTS[script], seq=seq)
    step, predicted = trace(name, of, layers, offload), predict(name, of, layers, offload)
    assert predicted["last block"] == pytest.approx(step.last_block, rel=0.10)
    plain = trace_step(ARCHITECTURES[name].config(layers), of) if layers == 2 else None
    assert plain is None or step.last_block < 0.5 * plain.last_block or script in ("full", "DoRA")
