"""Memory of updates in the backward pass, where each gradient is dropped as soon as it is there, against traces of 4 layers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from generator.cost.execution import Execution
from generator.cost.memory import compute_training_moments
from generator.cost.static_memory import compute_static_memory
from generator.estimate.optimizers import list_optimizer_states
from tests.cost import traces
from tests.cost.architectures import ARCHITECTURES
from tests.cost.traces import Script, trace_step

SCRIPT = Script(dtype=torch.bfloat16, checkpoint=True, batch=1, seq=2048)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2b"])
def test_the_gradients_that_wait(name, monkeypatch):
    """Gemma's output layer is its embedding: the gradient of the first waits for that of the second, which comes last."""
    fill = traces._fill

    def fill_and_drop(model: torch.nn.Module) -> None:
        fill(model)
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))

    monkeypatch.setattr(traces, "_fill", fill_and_drop)
    step = trace_step(ARCHITECTURES[name].config(4), SCRIPT)
    optimizer = list_optimizer_states()["in-backward-paged-adamw-8bit"]
    run = Execution(seq_len=2048, weights_dtype="bfloat16", checkpoint_every=1, optimizer=optimizer)
    shape = ARCHITECTURES[name].shape(4)
    moments = compute_training_moments(shape, run, compute_static_memory(shape, run))
    own = ("weights", "optimizer states")
    beside = {k: sum(v for part, v in parts.items() if part not in own) for k, parts in moments.items()}
    assert beside["loss"] == pytest.approx(step.loss, rel=0.10)
    assert beside["last block"] == pytest.approx(step.last_block, rel=0.10)
    assert max(beside["first block"], beside["optimizer step"]) == pytest.approx(step.first_block, rel=0.10)
