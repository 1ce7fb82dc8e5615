"""The processes of a training: are they those that were planned, and what do they agree on?"""

import faulthandler
import os
import re
import secrets
import sys
import time
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
from heartbeat import has_launcher_store, watch_others
from machine import peak_memory
from run_folder import claim_folder
from seals import hash_files, list_files
from stopping import SaveOnSignal
from wrapping import describe_wrapping

MARK = "_shared-"
"""Before the name of an empty file, by which all processes see at the start that they write to one folder."""
PART = re.compile(r"__(\d+)_\d+\.distcp")
"""What torch.distributed.checkpoint calls a file, by the process that wrote it."""
SHOWN_SECONDS = 120.0
"""Until a file of one node is seen on another: NFS may list a folder from memory for a minute."""


def check_launch(planned: dict) -> None:
    """Stop where this process is not one of the planned ones. From here on they listen to each other."""
    faulthandler.cancel_dump_traceback_later()  # of quiet_imports.py
    count, started = planned["expected"]["world_size"], os.environ.get("WORLD_SIZE", "none")
    if started != str(count):
        processes = "1 process" if count == 1 else f"{count} processes"
        sys.exit(
            f"This plan needs {processes} of a launcher ({started} started): `make train`, or\n"
            f"{planned['launcher']} train.py"
        )
    if count > 1 and has_launcher_store():
        watch_others()


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
    """For what the processes tell each other between steps: over the CPU, so that no device waits for it.

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
    """What the function returns on the first process, on all of them. Where it ends that, all end, and it says why."""
    group, failure, objects = gloo_group(), None, [None, True]
    if dist.get_rank() == 0:
        try:
            objects = [function(*arguments), False]
        except (Exception, SystemExit) as error:
            failure = error
    dist.broadcast_object_list(objects, group=group)
    if failure is not None:
        raise failure
    if objects[1]:
        sys.exit(1)
    return objects[0]


def claim_shared_folder(folder: Path, model: Path | str) -> None:
    """The first process claims it; all end where one sees another folder of that name, on a disk of its own."""
    if dist.get_world_size() > 1:
        watch_others()
    mark = broadcast_from_rank0(claim_and_mark, folder, model)
    unseen = all_reduce_max(float(not is_true_in_time(mark.exists)))
    if dist.get_rank() == 0:
        mark.unlink()
    if unseen:
        message = f"{folder} must be on a disk that all nodes see, and is not: each would keep a part of a checkpoint."
        sys.exit(message if dist.get_rank() == 0 else 1)


def claim_and_mark(folder: Path, model: Path | str) -> Path:
    claim_folder(folder, model)
    for mark in folder.glob(f"{MARK}*"):  # of a run that was ended here
        mark.unlink()
    mark = folder / f"{MARK}{secrets.token_hex(8)}"
    mark.touch()
    return mark


def wait_for_files(checkpoint: Path, first_of_node: bool) -> None:
    """Until the first process sees what those of other nodes have written: what it does not see would have no seal."""
    lists: list[Any] = [None] * dist.get_world_size()
    names = {str(path) for path in list_files(checkpoint)} if first_of_node else set()
    dist.gather_object(names, lists if dist.get_rank() == 0 else None, group=gloo_group())
    if dist.get_rank() == 0:
        written = set().union(*lists)
        if not is_true_in_time(lambda: written <= {str(path) for path in list_files(checkpoint)}):
            sys.exit(f"{checkpoint} is not sealed: what other nodes wrote there is not seen on the first one.")


def hash_parts(checkpoint: Path) -> dict[str, str]:
    """Each process hashes what it has written, which its node has in memory still; all hashes, on the first process.

    That one would read the parts of all other nodes from the disk, while they wait.
    """
    rank = dist.get_rank()
    own = [path for path in list_files(checkpoint) if (of := PART.fullmatch(path.name)) and int(of[1]) == rank]
    hashes = {str(path.relative_to(checkpoint)): value for path, value in hash_files(own).items()}
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(hashes, gathered if rank == 0 else None, group=gloo_group())
    return {name: value for part in gathered for name, value in part.items()} if rank == 0 else {}


def is_true_in_time(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SHOWN_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


class DistributedSaveOnSignal(SaveOnSignal):
    """All processes stop after the same step, whichever of them the signal reached."""

    def request_stop(self, signum, frame):
        self.requested = signum  # it may come again: the launcher passes on what its group of processes was sent

    def decide_signal(self) -> int:
        return int(all_reduce_max(self.requested))


class DistributedSealCheckpoints(SealCheckpoints):
    """All processes save or none does; a checkpoint is sealed once each has written its part."""

    def begin(self, args, state, control, model: nn.Module) -> None:
        super().begin(args, state, control, model)
        if (
            control.should_save
        ):  # a process that finds no folder keeps no best model, and the others wait for it to load that
            (Path(args.output_dir) / f"checkpoint-{state.global_step}").mkdir(parents=True, exist_ok=True)

    def seal(self, args, state) -> None:
        dist.barrier(group=gloo_group())
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        wait_for_files(checkpoint, args.local_process_index == 0)
        self.known = hash_parts(checkpoint)
        super().seal(args, state)
        # the first process hashes and removes alone. The accelerators' backend would end the others after 10 minutes:
        # DeepSpeed's groups and those of a mesh do not have ddp_timeout
        dist.barrier(group=gloo_group())

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
