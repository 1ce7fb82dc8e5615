"""Counts the collectives and copies of a training step of a small Llama under FSDP2, with and without checkpointing: in a process of
its own, because a process group lasts as long as its process. One process of two, of torch's fake group: nothing is sent."""

from __future__ import annotations

import json
import sys
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

LAYERS = 4
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
}


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func).split(".")[1]] += 1
        return func(*args, **(kwargs or {}))


def count_step(checkpoint: bool) -> Counter[str]:
    model = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=LAYERS, **SMALL)).train()
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    tokens = torch.randint(0, 100, (1, 16))
    with Counting() as counting:
        model(input_ids=tokens, labels=tokens).loss.backward()
    return counting.calls


if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    names = ("_allgather_base_", "split_with_sizes_copy", "chunk_cat", "_reduce_scatter_base_")
    steps = {str(checkpoint): count_step(checkpoint) for checkpoint in (False, True)}
    json.dump({key: {name: calls[name] for name in names} for key, calls in steps.items()}, sys.stdout)
