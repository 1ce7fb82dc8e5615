"""8 processes, one a GPU: is the work divided as planned, and what do they agree on?"""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from transformers import Trainer, TrainerCallback

PLANNED = {
    "wrapper": "DeepSpeedEngine",
    "zero_stage": 3,
    "shards": 8,
    "world_size": 8,
    "backend": "nccl",
    "device": "cuda",
}


def check_launch() -> None:
    """Stop where this process is not one of the planned ones."""
    started = os.environ.get("WORLD_SIZE", "none")
    if started != "8":
        sys.exit(
            f"This plan needs 8 processes of a launcher, and {started} were started: `make train`, or\n"
            "torchrun --standalone --nproc-per-node 8 --shutdown-timeout 600 train.py"
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
    """How the model is wrapped, over how many processes its states are divided, on what device."""
    engine = trainer.model_wrapped
    found = {
        "wrapper": type(engine).__name__,
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": trainer.args.device.type,
    }
    if not isinstance(engine, DeepSpeedEngine):
        return found
    return found | {"zero_stage": engine.zero_optimization_stage(), "shards": shards(engine)}


def shards(engine: DeepSpeedEngine) -> int:
    """The weights, over what one process keeps of them."""
    weights = list(engine.module.parameters())
    return round(sum(p.ds_numel for p in weights) / sum(p.ds_tensor.numel() for p in weights))


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
