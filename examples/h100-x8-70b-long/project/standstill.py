"""Where all processes are once nothing moves: one that hangs beats on, and the others wait for it.

That ends nothing, for a first process may write a large model for an hour: the libraries give up what waits for two.
"""

import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import torch.distributed as dist
from transformers import TrainerCallback

from launcher_summary import STANDSTILL, note_standstill

STILL_SECONDS = 600.0
TIMES = 3
"""As long as the longest time between two moves so far: a step of a slow machine, a checkpoint."""
LONGEST_SECONDS = 3600.0  # though a checkpoint took an hour: after two the libraries give up, and it is to be known why
STANDARD = sysconfig.get_path("stdlib")
BACKWARD = "torch/autograd/graph.py"
PASSED = ("torch/_ops.py", "torch/_tensor.py", "torch/utils/_contextlib.py", "torch/nn/modules/module.py")
WRAPPERS = ("<module>", "wrapper", "inner_func")
"""On the way to what a process does: these files and functions, and the standard library."""
WAITING = (
    BACKWARD,
    *(f"torch/distributed/{name}" for name in ("distributed_c10d.py", "_functional_collectives.py", "c10d_logger.py")),
    *(f"torch/distributed/{name}/" for name in ("fsdp", "nn", "pipelining")),
    *("torch/distributed/tensor/_redistribute.py", "torch/distributed/tensor/_collective_utils.py"),
    *("torch/nn/parallel/distributed.py", "deepspeed/comm/", "deepspeed/runtime/zero/partition"),
)
"""Where a process waits for others: in a collective, in a backward pass that has some, in what calls its ``wait()``."""
WAITS = "waits for others in"
SHOWN_PLACES, SHOWN_RANKS = 8, 8
TOLD = "standstill"
"""What the first process says, under this key: all places, asked for by a thousand, would be too much for the store."""
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
        self.moves = self.still = self.longest = self.reports = 0
        self.calls, self.placed = trace_calls(), False

    def observe(self) -> None:
        """Beats are counted, not seconds: all may have been stopped for an hour, and go on."""
        if self.has_moved():
            self.still = self.reports = 0
            if self.placed:
                self.go_on()
        else:
            self.still += 1
            self.look_around()

    def has_moved(self) -> bool:
        """While data is prepared and weights are read, before the training begins, by being elsewhere each time."""
        moves, calls, before = PACE.moves, self.calls, self.moves
        if not moves:
            self.calls = trace_calls()
            return self.calls != calls
        if moves != before and before:
            self.longest = max(self.longest, self.still)
        self.moves = moves
        return moves != before

    def go_on(self) -> None:
        """The key stays: who has seen it and reads it would wait for one that is deleted, and beat no more."""
        self.placed = False
        self.store.set(self.places[self.rank], "")
        if self.rank == 0:
            self.store.set(TOLD, "")
        note_standstill("")

    def look_around(self) -> None:
        limit = min(max(STILL_SECONDS, TIMES * self.longest * self.beat_seconds), LONGEST_SECONDS)
        seconds = self.still * self.beat_seconds
        if seconds < limit:
            return
        self.store.set(self.places[self.rank], describe_place())
        self.placed = True
        if self.rank == 0 and seconds >= limit * 2**self.reports:
            self.tell(seconds)
        elif self.rank and self.store.check([TOLD]):
            message = self.store.get(TOLD).decode()
            if message not in (STANDSTILL or [""]):  # it may be another one by now
                note_standstill(message)

    def tell(self, seconds: float) -> None:
        places = self.read(self.places) if self.store.check(self.places) else [""]
        if all(places):
            self.reports += 1
            message = describe_standstill(places, self.read(self.names), seconds)
            self.store.set(TOLD, message)
            note_standstill(message)
            print(message, file=sys.stderr, flush=True)

    def read(self, keys: list[str]) -> list[str]:
        return [value.decode() for value in self.store.multi_get(keys)]


def trace_calls() -> list[list[tuple[CodeType, int]]]:
    """Of the main thread and those that work for it (they read weights): the instruction that each function is at."""
    frames = sys._current_frames()
    threads = [list_frames(frames.get(thread.ident)) for thread in threading.enumerate() if not thread.daemon]
    return [[(frame.f_code, frame.f_lasti) for frame in thread] for thread in threads]


def describe_place() -> str:
    """Of the main thread: what it is in, and the way there, with the lines of this project."""
    threads = sys._current_frames()
    frames = list(list_frames(threads.pop(threading.main_thread().ident, None)))
    if not frames:
        return "at its end"
    if frames[0].f_code.co_filename.endswith(BACKWARD):  # on a GPU it goes backward, and through its hooks, in others
        started = {thread.ident for thread in threading.enumerate()}
        hooks = (list(list_frames(frame)) for ident, frame in threads.items() if ident not in started)
        frames = [*next(hooks, []), *frames]
    passed = [frame for frame in frames if not is_passed(frame)]
    waits = any(part in frame.f_code.co_filename for frame in passed[:1] for part in WAITING)
    way = " > ".join(describe_call(frame) for frame in reversed(passed))
    return f"{WAITS if waits else 'in'} {describe_frame(frames[0])}\n    {way}"


def list_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_passed(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    standard = name.startswith(("<", STANDARD)) and "site-packages" not in name
    return standard or name.endswith(PASSED) or frame.f_code.co_name in WRAPPERS


def describe_call(frame: FrameType) -> str:
    return describe_frame(frame) if is_own(frame) else frame.f_code.co_qualname


def describe_frame(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    name = path.name if is_own(frame) else "/".join(path.parts[-3:])
    return f"{frame.f_code.co_qualname} ({name}:{frame.f_lineno})"


def is_own(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).absolute().parent == PROJECT


def describe_standstill(places: list[str], names: list[str], seconds: float) -> str:
    """Those that do not wait come first, and of them the fewest: it is they whom the others wait for."""
    ranks: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place, []).append(rank)
    groups = sorted(ranks.items(), key=lambda group: (group[0].startswith(WAITS), len(group[1])))
    lines = [f"{list_ranks(numbers, names)}: {place}" for place, numbers in groups[:SHOWN_PLACES]]
    if len(groups) > SHOWN_PLACES:
        lines.append(f"the other {sum(len(numbers) for _, numbers in groups[SHOWN_PLACES:])} elsewhere")
    before = "The training has not begun, and no process has left its place"
    still = "No process has finished anything" if PACE.moves else before
    return "\n  ".join([f"{still} for {seconds:.0f} s. Where they are:", *lines])


def list_ranks(numbers: list[int], names: list[str]) -> str:
    if len(numbers) == 1:
        return names[numbers[0]]
    shown = f"ranks {', '.join(map(str, numbers[:SHOWN_RANKS]))}"
    return shown if len(numbers) <= SHOWN_RANKS else f"{shown} and {len(numbers) - SHOWN_RANKS} more"
