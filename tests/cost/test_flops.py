"""Arithmetic of a pass against PyTorch's own counter, on public models at their real width and two blocks (fake tensors)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.cost.architectures import ARCHITECTURES
from tests.cost.flops import forward_flops, lora_step_flops, step_flops
from tests.cost.traces import Script, fake_model

BATCH, SEQ = 2, 512
LORA = ("llama-3-8b", "qwen3-8b", "gemma-2b", "olmo-2-7b", "starcoder2-3b", "smollm3-3b")


def grouped_flops(inputs, weights, *_args, **_more) -> int:
    """Experts' products, which the counter does not know: rows of all groups, or of one group after the other (gradients)."""
    return 2 * inputs[-2] * inputs[-1] * weights[-1]


def counted(name: str, *, lora: bool = False, checkpoint: bool = False, step: bool = True) -> int:
    """Operations of one pass; eager attention, whose products the counter sees."""
    architecture = ARCHITECTURES[name]
    script = Script(
        dtype=torch.bfloat16,
        lora="all-linear" if lora else None,
        checkpoint=checkpoint,
        attention="eager",
        labels=2 if architecture.classifier else 0,
        on_cuda=False,
    )
    known = {torch.ops.aten._grouped_mm: grouped_flops}
    with fake_model(architecture.config(2 * architecture.period), script) as model:
        if lora:
            model.enable_input_require_grads()  # as if the first block were one of many: its input has a gradient too
        tokens = torch.zeros(BATCH, SEQ, dtype=torch.long)
        labels = torch.zeros(BATCH, dtype=torch.long) if architecture.classifier else tokens
        with FlopCounterMode(display=False, custom_mapping=known) as counter:
            loss = model(input_ids=tokens, labels=labels).loss
            if step:
                loss.backward()
    return counter.get_total_flops()


def shape(name: str):
    return ARCHITECTURES[name].shape(2 * ARCHITECTURES[name].period)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_forward(name: str):
    assert forward_flops(shape(name), BATCH * SEQ, SEQ) == pytest.approx(counted(name, step=False), rel=0.01)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_full_step(name: str, checkpoint: bool):
    expected = step_flops(shape(name), BATCH * SEQ, SEQ, recomputed_share=float(checkpoint))
    assert expected == pytest.approx(counted(name, checkpoint=checkpoint), rel=0.01)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", LORA)
def test_lora_step(name: str, checkpoint: bool):
    expected = lora_step_flops(
        shape(name), BATCH * SEQ, SEQ, rank=8, targets="all-linear", recomputed_share=float(checkpoint)
    )
    assert expected == pytest.approx(counted(name, lora=True, checkpoint=checkpoint), rel=0.02)
