"""Host memory of one process that drives an accelerator: interpreter, loading, pinned copies, offloaded states."""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.estimate import GIB, Part
from generator.cost.execution import Execution
from generator.cost.formulas import pinned_host
from generator.cost.memory import Static
from generator.cost.shape import Shape

WORKER_GIB = 0.35
SHARD_GIB = 4.7
"""largest shard of a checkpoint that is being read (save_pretrained's usual 5 GB shards)"""


def host_parts(shape: Shape, run: Execution, fixed: Static | None) -> tuple[Part, ...]:
    """All processes of one node are counted by the caller; this is one."""
    parts = [
        Part(name="interpreter", value=c.PROCESS_GIB + 2.0, basis="assumed", source="Python, torch, CUDA libraries")
    ]
    shard = min(SHARD_GIB, shape.params * 2 / GIB)
    parts.append(
        Part(name="checkpoint shard", value=shard, basis="derived", source="one shard is read at a time (safetensors)")
    )
    if run.dataloader_workers:
        parts.append(
            Part(
                name="data workers",
                value=WORKER_GIB * run.dataloader_workers,
                basis="assumed",
                source="a forked worker with its own interpreter state",
            )
        )
    if fixed is not None and run.offload_optimizer == "cpu":
        parts.append(
            Part(
                name="offloaded optimizer",
                value=fixed.trained * 16 / run.dp / GIB,
                basis="published",
                source="DeepSpeed: 16 bytes a parameter on the host (docs memory.rst)",
            )
        )
    if fixed is not None and run.offload_params == "cpu":
        pinned = pinned_host(shape.params, offload_params=True, accumulates=run.accumulation > 1) / run.dp
        parts.append(
            Part(name="offloaded weights", value=pinned / GIB, basis="published", source="pinned copies (memory.rst)")
        )
    if run.checkpoint_offload and fixed is not None:
        kept = run.micro_batch * run.seq_len * shape.layers * fixed.block.kept
        parts.append(
            Part(
                name="offloaded activations", value=kept / GIB, basis="derived", source="pinned copies of block inputs"
            )
        )
    return tuple(parts)
