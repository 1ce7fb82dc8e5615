"""16 processes, one a GPU: is the work divided as planned, and what do they agree on?"""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback

PLANNED = {
    "wrapper": "FSDPModule",
    "sharded": "all",
    "mesh": ["(2, 8)"],
    "placements": ["(Replicate(), Shard(dim=0))"],
    "world_size": 16,
    "backend": "nccl",
    "device": "cuda",
}


def check_launch() -> None:
    """Stop where this process is not one of the planned ones."""
    started = os.environ.get("WORLD_SIZE", "none")
    if started != "16":
        sys.exit(
            f"This plan needs 16 processes of a launcher, and {started} were started: `make train`, or\n"
            "accelerate launch --config_file accelerate.yaml --main_process_ip $MASTER_ADDR train.py"
        )


class CheckParallel(TrainerCallback):
    """Stops before the first step where the model is not divided as planned: libraries fall back without a word."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        found = look_at(self.trainer)
        wrong = [f"{key}: {found.get(key)}, not {value}" for key, value in PLANNED.items() if found.get(key) != value]
        if wrong:
            sys.exit(f"process {args.process_index} does not train as planned:\n  " + "\n  ".join(wrong))
        if state.is_world_process_zero:
            print("as planned: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.items()))


def look_at(trainer: Trainer) -> dict:
    """How the model is wrapped, how its weights are divided, on what device, and among how many processes."""
    model, weights = trainer.model, list(trainer.model.parameters())
    sharded = [p for p in weights if isinstance(p, DTensor)]
    return {
        "wrapper": "FSDPModule" if isinstance(model, FSDPModule) else type(trainer.model_wrapped).__name__,
        "sharded": "all" if len(sharded) == len(weights) else f"{len(sharded)} of {len(weights)}",
        "mesh": sorted({str(tuple(p.device_mesh.shape)) for p in sharded}),
        "placements": sorted({str(p.placements) for p in sharded}),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": " and ".join(sorted({p.device.type for p in weights})),
    }


@cache
def control() -> dist.ProcessGroup:
    """For what the processes tell each other between steps: over the CPU, so that no GPU waits for it."""
    return dist.new_group(backend="gloo")


def largest(number: float) -> float:
    """The largest that any process has, on all of them."""
    found = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=control())
    return found.item()


def from_first(find: Callable[[], Any]) -> Any:
    """What the first process finds, on all of them."""
    found = [find() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, group=control())
    return found[0]


def wait_for_all() -> None:
    dist.barrier(group=control())


def leave_together(accelerator) -> None:
    """Close the connections at one time: a process that goes while another still writes could end with an error."""
    wait_for_all()
    control.cache_clear()
    accelerator.end_training()
