"""What a stage of a pipeline holds: as much for many micro-batches as for few."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from leaves import load_leaf
from transformers import LlamaConfig, LlamaForCausalLM

STATES = (
    "PARTIAL_GRADIENTS",
    "adapt_equally",
    "divide_gradient",
    "get_local",
    "list_weights",
    "refuse_router_loss",
    "sum_over_processes",
)
SCRIPT = Path(__file__).with_name("stage_processes.py")


def run_stages(folder: Path, count: int) -> list[dict]:
    subprocess.run([sys.executable, str(SCRIPT), str(folder), str(count)], check=True, timeout=120)
    return [json.loads((folder / f"{count}-{rank}.json").read_text()) for rank in (0, 1)]


def test_memory_of_a_stage_does_not_grow_with_the_micro_batches(tmp_path):
    """PyTorch 2.13's PipelineStage receives each in a place of its own, and keeps the logits of all in an evaluation."""
    few, many = run_stages(tmp_path, 4), run_stages(tmp_path, 16)
    assert all(stage["equal"] for stage in (*few, *many))
    assert many == few


@pytest.mark.parametrize("recomputes", [False, True])
def test_micro_batches_under_way_share_the_16_bit_copies_of_weights(monkeypatch, recomputes):
    """Autocast's cache is off in loop.py: with eight stages the first kept eight copies of its weights. Blocks that are computed
    again keep none."""
    for name, names in {"divided_states": STATES, "loaded_weights": ("check_loaded",)}.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**dict.fromkeys(names, None)))
    pipeline = load_leaf("division/pipeline", "division")
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=80
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    args = SimpleNamespace(device=torch.device("cpu"), bf16=True, activation_checkpointing=recomputes)
    stage = pipeline.Stage(model, args, True, True)
    if recomputes:
        model.activation_checkpointing_enable()
    rows = torch.randint(80, (3, 8))
    linears = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    shapes = {weight.shape for weight in linears}
    copies: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        if base.dtype == torch.bfloat16 and base.shape in shapes:
            copies[base.data_ptr()] = base
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    ):
        losses = [stage(row[None]).float().square().mean() for row in rows]
    assert len(copies) == (len(rows) if recomputes else len(linears))
    for loss in losses:
        loss.backward()
    shared = [weight.grad.clone() for weight in linears]
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        model(rows).logits.float().square().mean(dim=(1, 2)).sum().backward()
    for weight, grad in zip(linears, shared, strict=True):
        assert torch.allclose(weight.grad, grad, rtol=0.05, atol=0.05 * grad.abs().max().item())
