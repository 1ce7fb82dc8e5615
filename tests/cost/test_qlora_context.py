"""Peak memory of the longest QLoRA contexts that are planned, against traces of the emitted step: weights packed, 2 and 4 layers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("trl")
pytest.importorskip("bitsandbytes")

import torch
from bitsandbytes.functional import QuantState
from bitsandbytes.nn import Linear4bit
from leaves import load_leaf

from generator import pipeline
from generator.case.request import Request
from generator.cost.execution import Execution
from generator.cost.memory import compute_training_moments
from generator.cost.static_memory import compute_static_memory
from tests.cost import traces
from tests.cost.architectures import ARCHITECTURES
from tests.cost.test_tiled_traces import OnHost, count_without_sums
from tests.cost.test_traces import fused_output_layer, take_loss
from tests.cost.traces import Script, trace_step

MODELS = Path(__file__).resolve().parent.parent.parent / "examples" / "models"

pytestmark = pytest.mark.slow
BF16 = torch.bfloat16
LAYERS = 32
BLOCK, OUTER = 64, 256
"""values of a scale, and scales of a scale of scales (bitsandbytes' double quantization)"""


def pack(model: torch.nn.Module) -> None:
    """As ``from_pretrained`` with the emitted BitsAndBytesConfig: all linear layers but the output's."""
    from transformers import BitsAndBytesConfig
    from transformers.integrations import replace_with_bnb_linear

    how = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": BF16}
    replace_with_bnb_linear(model, ["lm_head"], BitsAndBytesConfig(load_in_4bit=True, **how))
    model.is_loaded_in_4bit = True


def pack_weight(layer: Linear4bit) -> QuantState:
    """A fake packed weight in the place of a meta one, and its scales, which are no parameters."""
    shape = torch.Size((layer.out_features, layer.in_features))
    scales = shape.numel() // BLOCK
    outer = QuantState(torch.empty(scales // OUTER), code=torch.empty(256), blocksize=OUTER, dtype=torch.float32)
    layer.weight = torch.nn.Parameter(torch.empty(shape.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)
    inner = {"code": torch.empty(16), "blocksize": BLOCK, "quant_type": "nf4", "offset": torch.empty(())}
    return QuantState(torch.empty(scales, dtype=torch.uint8), shape, dtype=BF16, state2=outer, **inner)


def pack_and_fuse(model: torch.nn.Module) -> None:
    pack(model)
    fused_output_layer(model)


def trace_emitted(config, script: Script, run: Execution) -> dict[str, float]:
    """Bytes at each moment of a step, weights and optimizer states included."""
    build, fill, scales = traces._model, traces._fill, []

    def build_emitted(config, script: Script):
        model = build(config, script)
        model.base_model.model.activation_checkpointing_enable(
            {"use_reentrant": False}, **({"offload": True} if run.checkpoint_offload else {})
        )
        if run.tile_tokens:
            load_leaf("tiled_layers").tile_layers(model)
        load_leaf("adapter_inputs").share_inputs(
            model
        )  # PEFT casts no input of 4-bit layers where CUDA's autocast is on
        return model

    def fill_packed(model) -> None:
        states = {layer: pack_weight(layer) for layer in model.modules() if isinstance(layer, Linear4bit)}
        fill(model)
        for layer, state in states.items():  # `fill` has made new parameters
            layer.weight.quant_state = state
        scales.append(sum(state.absmax.nbytes + state.state2.absmax.nbytes for state in states.values()))
        scales.append(sum(weight.nbytes for weight in model.parameters()))

    with ExitStack() as stack:
        stack.enter_context(patch.object(traces, "_model", build_emitted))
        stack.enter_context(patch.object(traces, "_fill", fill_packed))
        if run.checkpoint_offload:
            stack.enter_context(patch("transformers.modeling_utils.save_on_cpu", OnHost))
        step = trace_step(config, script)
    weights = sum(scales)
    backward = ("loss", "last_block", "first_block")
    return {name: weights + step.states + getattr(step, name) for name in backward} | {"update": weights + step.update}


def extrapolate(few: float, more: float) -> float:
    """From 2 and 4 layers to all of them."""
    return few + (more - few) / 2 * (LAYERS - 2)


@pytest.mark.parametrize(("hardware", "seq"), [("1xrtx-4060", 2048), ("1xrtx-4090", 131_072)])
def test_the_longest_contexts_of_8_and_24_gb(hardware, seq, monkeypatch):
    """2k tokens on 8 GB, and on 24 GB as many as the model has positions for: the planned peak is that of the traced step."""
    asked = {"task": "sft", "train": "qlora", "seq_len": seq, "global_batch": 1, "hardware": hardware, "offline": True}
    run = pipeline.plan_request(Request(model=str(MODELS / "llama-3.1-8b.json"), **asked)).plan.best.execution
    assert bool(run.checkpoint_offload and run.tile_tokens) == (seq > 80_000)
    monkeypatch.setattr("generator.cost.activations.count_attention_gradient_bytes", count_without_sums)
    adamw = partial(torch.optim.AdamW, lr=1e-3, foreach=False, fused=False)
    script = Script(dtype=BF16, autocast=BF16, lora="all-linear", rank=run.lora_rank, batch=1, seq=seq, optimizer=adamw)
    script = take_loss(script, "tiled", monkeypatch)
    script = replace(script, prepare=pack_and_fuse)
    config = ARCHITECTURES["llama-3-8b"].config
    few, more = (trace_emitted(config(layers), script, run) for layers in (2, 4))
    traced = {name: extrapolate(few[name], more[name]) for name in few}
    shape = ARCHITECTURES["llama-3-8b"].shape(LAYERS)
    moments = compute_training_moments(shape, run, compute_static_memory(shape, run))
    predicted = {name: sum(parts.values()) for name, parts in moments.items()}
    assert max(predicted.values()) == pytest.approx(max(traced.values()), rel=0.10)
