"""The processes of a training: are they those that were planned, and what do they agree on?"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback

from checkpoints import SMALL_FILES_BYTES, SealCheckpoints
from machine import peak_memory
from stopping import SaveOnSignal
from wrapping import describe_wrapping


def check_launch(planned: dict) -> None:
    """Stop where this process is not one of the planned ones."""
    count, started = planned["expected"]["world_size"], os.environ.get("WORLD_SIZE", "none")
    if started != str(count):
        processes = "1 process" if count == 1 else f"{count} processes"
        sys.exit(
            f"This plan needs {processes} of a launcher ({started} started): `make train`, or\n"
            f"{planned['launcher']} train.py"
        )


class CheckParallel(TrainerCallback):
    """Stops before the first step where the model is not divided as planned: libraries fall back without a word."""

    def __init__(self, trainer: Trainer, planned: dict):
        self.trainer = trainer
        self.expected = planned["expected"]

    def on_train_begin(self, args, state, control, **kwargs):
        actual = describe_wrapping(self.trainer)
        wrong = {key: value for key, value in self.expected.items() if actual.get(key) != value}
        if wrong:
            differences = "\n  ".join(f"{key}: {actual.get(key)}, not {value}" for key, value in wrong.items())
            sys.exit(f"process {args.process_index} does not train as planned:\n  {differences}")
        if state.is_world_process_zero:
            print(
                "divided as planned: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in actual.items())
            )


@cache
def gloo_group() -> dist.ProcessGroup:
    """For what the processes tell each other between steps: over the CPU, so that no GPU waits for it.

    PyTorch's half hour is less than a first process may need to write a large model while the others wait.
    """
    return dist.new_group(backend="gloo", timeout=timedelta(hours=2))  # as ddp_timeout


def all_reduce_max(number: float) -> float:
    """The largest number that any process has, on all of them."""
    tensor = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=gloo_group())
    return tensor.item()


def measure_peak_of_all() -> dict[str, float]:
    """Of the process that needed most."""
    return {name: all_reduce_max(value) for name, value in peak_memory().items()}


def broadcast_from_rank0(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns on the first process, on all of them."""
    objects = [function(*arguments) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(objects, group=gloo_group())
    return objects[0]


class DistributedSaveOnSignal(SaveOnSignal):
    """All processes stop after the same step, whichever of them the signal reached."""

    def request_stop(self, signum, frame):
        self.requested = signum  # it may come again: the launcher passes on what its group of processes was sent

    def decide_signal(self) -> int:
        return int(all_reduce_max(self.requested))


class DistributedSealCheckpoints(SealCheckpoints):
    """All processes save or none does; a checkpoint is sealed once each has written its part."""

    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        if (
            control.should_save
        ):  # a process that finds no folder keeps no best model, and the others wait for it to load that
            (Path(args.output_dir) / f"checkpoint-{state.global_step}").mkdir(parents=True, exist_ok=True)

    def on_save(self, args, state, control, **kwargs):
        dist.barrier(group=gloo_group())
        super().on_save(args, state, control, **kwargs)

    def is_damaged(self, checkpoint: Path, state) -> bool:
        return bool(all_reduce_max(float(super().is_damaged(checkpoint, state))))

    def free_bytes(self, folder: str) -> float:
        return -all_reduce_max(-super().free_bytes(folder))

    def needed_bytes(self, model: nn.Module) -> int:
        """fp32 weights, a copy of them, two optimizer states, and the small files."""
        return 16 * self.run["trained parameters"] + SMALL_FILES_BYTES


def shut_down(accelerator) -> None:
    """Close the connections at one time: a process that goes while another still writes could end with an error."""
    dist.barrier(group=gloo_group())
    gloo_group.cache_clear()
    accelerator.end_training()
