"""Checkpoints that are written while the training goes on (--async_save), from a copy of the states in host memory.

Each gets its seal once all processes have written their parts: the next one waits for it, and so does the end.
"""

import copy
import math
import os
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

from divided_states import name_failure
from parallel import DistributedSealCheckpoints, all_reduce_max
from room import read_free_bytes

UNDER_WAY: dict[Path, Future] = {}
"""At most one, by its folder of parts."""
WRITER = ThreadPoolExecutor(1)


@cache
def writing_group() -> dist.ProcessGroup:
    """Of the threads that write: two threads that use one group take each other's messages."""
    return dist.new_group(backend="gloo", timeout=timedelta(hours=2))


def begin_to_write(states: dict, folder: Path) -> None:
    """On all processes, or at once on all where one has no room for the copy."""
    tensors = [leaf for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]
    own = sum((leaf.to_local() if isinstance(leaf, DTensor) else leaf).nbytes for leaf in tensors)
    needed, free = own * int(os.environ["LOCAL_WORLD_SIZE"]), read_free_bytes()
    if all_reduce_max(float(free is not None and free < needed)):
        if dist.get_rank() == 0:
            print(f"{folder.parent.name}: no host memory for a copy of {needed / 2**30:.1f} GiB: the training waits")
        with name_failure():
            dcp.save(states, checkpoint_id=folder)
        return
    # not dcp.async_save: of what redistribute has made it takes no copy (torch 2.13, "invalid python storage")
    copied = tree_map(copy_to_host, states)
    UNDER_WAY[folder] = WRITER.submit(dcp.save, copied, checkpoint_id=folder, process_group=writing_group())


def copy_to_host(value):
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


class SealWritten(DistributedSealCheckpoints):
    """Looks after each step whether the checkpoint that is under way has been written."""

    saved = None  # the state of the step whose checkpoint is under way

    def on_train_begin(self, args, state, control, **kwargs):
        if args.async_save:
            writing_group()  # made by all at one time
        super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args, state, control, **kwargs):
        if self.saved and (control.should_save or control.should_training_stop or is_written()):
            self.finish(args)
        super().on_step_end(args, state, control, **kwargs)

    def begin(self, args, state, control, model: nn.Module) -> None:
        if self.saved:  # an evaluation asked for this one: no end of a step lies between
            self.finish(args)
        super().begin(args, state, control, model)

    def on_log(self, args, state, control, logs, **kwargs):
        if self.saved and not all(map(math.isfinite, logs.values())):  # all processes log it, and may end right after
            self.finish(args)

    def on_save(self, args, state, control, **kwargs):
        if not args.async_save:
            super().on_save(args, state, control, **kwargs)
            return
        self.before_seal(args, state)
        self.saved = copy.copy(state)
        if control.should_training_stop:
            self.finish(args)
            self.leave_damaged_best(args, state)

    def finish(self, args) -> None:
        """All wait for what is not written yet."""
        for writing in UNDER_WAY.values():
            with name_failure():
                writing.result()
        UNDER_WAY.clear()
        self.seal(args, self.saved)
        self.saved = None


def finish_writing(callbacks: list, args) -> None:
    """Where the run ends outside of its callbacks, on all processes."""
    for callback in callbacks:
        if isinstance(callback, SealWritten) and callback.saved:
            callback.finish(args)


def is_written() -> bool:
    """By all processes."""
    return not all_reduce_max(float(any(not writing.done() for writing in UNDER_WAY.values())))
