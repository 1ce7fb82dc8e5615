"""Where all processes are once the training moves no more: one that hangs beats on, and the others wait for it.

That ends nothing, for a first process may write a large model for an hour: the libraries give up what waits for two.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch.distributed as dist
from transformers import TrainerCallback

from launcher_summary import STANDSTILL

STILL_SECONDS = 600.0
TIMES = 3
"""As long as the longest time between two moves so far: a step of a slow machine, a checkpoint."""
WAITING = ("torch/distributed/", "torch/autograd/graph.py")
"""Where a process waits for others: in a collective, or in a backward pass that has some."""
WAITS = "waits for others in"
INNERMOST = 4
SHOWN_RANKS = 8
PROJECT = Path(__file__).resolve().parent


class Pace(TrainerCallback):
    """What this process has done so far, counted: passes of training and evaluation, steps and saves."""

    def __init__(self):
        self.moves = 0

    def move(self, args, state, control, **kwargs):
        self.moves += 1

    on_train_begin = on_substep_end = on_step_end = on_prediction_step = on_evaluate = on_save = move


PACE = Pace()
"""Of this process: its training moves it, and the thread that beats looks at it."""


class Standstill:
    """Of one process, beat by beat. Each writes down where it is, and the first one says where all are."""

    def __init__(self, store: dist.Store, rank: int, count: int, beat_seconds: float):
        self.store, self.rank, self.beat_seconds = store, rank, beat_seconds
        self.places = [f"place/{other}" for other in range(count)]
        self.names = [f"who/{other}" for other in range(count)]
        self.moves = self.still = self.longest = self.said = 0

    def observe(self) -> None:
        """Beats are counted, not seconds: all may have been stopped for an hour, and go on."""
        if PACE.moves != self.moves:
            self.longest = max(self.longest, self.still)
            self.moves, self.still, self.said = PACE.moves, 0, 0
            STANDSTILL.clear()
            self.store.delete_key(self.places[self.rank])
        elif self.moves:  # before, data is prepared, which takes what it takes
            self.still += 1
            self.look_around()

    def look_around(self) -> None:
        limit = max(STILL_SECONDS, TIMES * self.longest * self.beat_seconds)
        if self.still * self.beat_seconds < limit:
            return
        self.store.set(self.places[self.rank], describe_place())
        seconds = self.still * self.beat_seconds
        if seconds >= limit * 2**self.said and self.store.check(self.places):
            self.said += 1
            STANDSTILL[:] = [describe_standstill(self.read(self.places), self.read(self.names), seconds)]
            if self.rank == 0:
                print(STANDSTILL[0], file=sys.stderr, flush=True)

    def read(self, keys: list[str]) -> list[str]:
        return [value.decode() for value in self.store.multi_get(keys)]


def describe_place() -> str:
    """Of the main thread: what it is in, and which line of this project led there."""
    frames = list(list_frames(sys._current_frames()[threading.main_thread().ident]))
    innermost = frames[0]
    own = next((frame for frame in frames if Path(frame.f_code.co_filename).parent == PROJECT), innermost)
    place = describe_frame(innermost) + (f", from {describe_frame(own)}" if own is not innermost else "")
    waits = any(part in frame.f_code.co_filename for frame in frames[:INNERMOST] for part in WAITING)
    return f"{WAITS if waits else 'in'} {place}"


def list_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def describe_frame(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    name = path.name if path.parent == PROJECT else "/".join(path.parts[-3:])
    return f"{frame.f_code.co_name} ({name}:{frame.f_lineno})"


def describe_standstill(places: list[str], names: list[str], seconds: float) -> str:
    """Those that do not wait come first, and of them the fewest: it is they whom the others wait for."""
    ranks: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place, []).append(rank)
    groups = sorted(ranks.items(), key=lambda group: (group[0].startswith(WAITS), len(group[1])))
    lines = [f"{list_ranks(numbers, names)}: {place}" for place, numbers in groups]
    return "\n  ".join([f"No process has finished anything for {seconds:.0f} s. Where they are:", *lines])


def list_ranks(numbers: list[int], names: list[str]) -> str:
    if len(numbers) == 1:
        return names[numbers[0]]
    shown = f"ranks {', '.join(map(str, numbers[:SHOWN_RANKS]))}"
    return shown if len(numbers) <= SHOWN_RANKS else f"{shown} and {len(numbers) - SHOWN_RANKS} more"
