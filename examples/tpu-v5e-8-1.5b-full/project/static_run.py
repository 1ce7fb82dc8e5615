"""What a run in compiled graphs needs of Python: flags, rows, rates, checkpoints, and the count of compilations.

Imports neither PyTorch nor TensorFlow: rows, rates and files are the same whatever compiles the steps.
"""

import json
import math
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from transformers import HfArgumentParser

IGNORED = -100
"""the label of a place that is not learned from"""


@dataclass
class RunArguments:
    """The names of TrainingArguments that these loops read, with its meanings; others are refused, not ignored."""

    output_dir: str = "runs"
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    num_train_epochs: float = 1.0
    max_steps: int = -1
    warmup_steps: float = 0.0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "linear"
    logging_steps: int = 1
    save_strategy: str = "steps"
    save_steps: int = 500
    save_total_limit: int = 2
    eval_strategy: str = "no"
    eval_steps: int = 500
    seed: int = 42
    bf16: bool = False
    report_to: str = "none"

    def __post_init__(self):
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"--{name} {getattr(self, name)}: this loop knows {', '.join(allowed)}")

    def check_batch(self, devices: int, planned: int) -> int:
        """The sequences of an optimizer step: those that were asked for, on however many devices."""
        batch = self.per_device_train_batch_size * self.gradient_accumulation_steps * devices
        if batch != planned:
            sys.exit(
                f"--per_device_train_batch_size {self.per_device_train_batch_size} x {devices} devices x "
                f"--gradient_accumulation_steps {self.gradient_accumulation_steps} are {batch} sequences a step, and "
                f"config.yaml has {planned} (graphs.global_batch): change these, or the devices that the process sees"
            )
        return batch

    def count_steps(self, rows: int, batch: int) -> int:
        """Of the run. ``batch``: rows of an optimizer step; those that fill no step of an epoch are dropped."""
        if rows < batch:
            sys.exit(f"{rows} sequences are fewer than one global batch of {batch}: add data, or give a smaller batch")
        return self.max_steps if self.max_steps > 0 else math.ceil(self.num_train_epochs * (rows // batch))

    def find_rate(self, step: int, steps: int) -> float:
        """The learning rate of optimizer step ``step``, from 0 on, as get_scheduler has it."""
        if self.lr_scheduler_type == "constant":
            return self.learning_rate
        warmup = math.ceil(steps * self.warmup_steps) if self.warmup_steps < 1 else int(self.warmup_steps)
        if step < warmup:
            return step / warmup * self.learning_rate
        left = max(0.0, (steps - step) / max(1, steps - warmup))
        shape = {"linear": left, "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left)))}
        return shape[self.lr_scheduler_type] * self.learning_rate


CHOICES = {
    "lr_scheduler_type": ("linear", "cosine", "constant"),
    "save_strategy": ("steps", "no"),
    "eval_strategy": ("steps", "no"),
    "report_to": ("none",),
}


def parse_arguments(config: dict, here: Path, **planned) -> RunArguments:
    """The plan's values, those of config.yaml, and flags. Exit code 2 for what this loop does not know."""
    parser = HfArgumentParser(RunArguments)
    parser.set_defaults(output_dir=str(here / config["output_dir"]), **planned)
    known = {field.name for field in fields(RunArguments)}
    if wrong := [name for name in config["training"] if name not in known]:
        parser.error(f"config.yaml: training.{wrong[0]} is none of {', '.join(sorted(known))}")
    parser.set_defaults(**config["training"])
    try:
        (args,) = parser.parse_args_into_dataclasses()
    except ValueError as error:
        parser.error(str(error))
    return args


def hold_out(rows, config: dict, args: RunArguments, load: Callable):
    """Rows to train on and rows to evaluate on: a share of ``rows``, or those of a file; none: ``[]``."""
    source, most = config["eval_data"], config["eval_rows"]
    if source is None:
        return rows, []
    draw = random.Random(args.seed)
    if isinstance(source, str):
        held = load(config | {"data": source})
        return rows, Picked(held, sorted(draw.sample(range(len(held)), min(most or len(held), len(held)))))
    count = max(1, min(round(len(rows) * source), most or len(rows)))
    taken = set(draw.sample(range(len(rows)), count))
    return Picked(rows, [n for n in range(len(rows)) if n not in taken]), Picked(rows, sorted(taken))


class Picked:
    """Some rows of a data set."""

    def __init__(self, rows, numbers: list[int]):
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> dict:
        return self.rows[self.numbers[number]]


def order_rows(count: int, batch: int, step: int, seed: int) -> list[int]:
    """The rows of one optimizer step: another order each epoch; the rest that fills no batch is dropped."""
    epoch, place = divmod(step, count // batch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [int(number) for number in order[place * batch : (place + 1) * batch]]


def pad_batch(rows: list[dict], size: int, multiple: int, longest: int, filler: int) -> dict[str, np.ndarray]:
    """``size`` rows of one length: of ``multiple``, at most ``longest``. Padding is not learned from."""
    length = max(len(row["input_ids"]) for row in rows)
    length = min(longest, math.ceil(length / multiple) * multiple)
    tokens = np.full((size, length), filler, np.int64)
    labels = np.full((size, length), IGNORED, np.int64)
    mask = np.zeros((size, length), np.int64)
    for place, row in enumerate(rows):
        end = len(row["input_ids"])
        tokens[place, :end], labels[place, :end], mask[place, :end] = row["input_ids"], row["labels"], 1
    return {"input_ids": tokens, "labels": labels, "attention_mask": mask}


def count_learned(batches: list[dict[str, np.ndarray]]) -> int:
    """Places that a step learns from: each predicts the next one."""
    return sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)


class Compilations:
    """Counts what is compiled, and ends the run at a graph too many, which would cost minutes each time, unseen."""

    def __init__(self, count: Callable[[], int], describe: Callable[[], str]):
        self.count, self.describe = count, describe
        self.shapes: dict[str, list] = {}
        self.compiled = 0

    @contextmanager
    def expect_one(self, graph: str, shape: tuple[int, ...]) -> Generator[None]:
        """One compilation for a shape that ``graph`` had not before, none for one that it had."""
        known = self.shapes.setdefault(graph, [])
        expected, before = int(shape not in known), self.count()
        yield
        made = self.count() - before
        self.compiled += made
        if made > expected:
            sys.exit(
                f"{graph} of shape {shape} was compiled {made} times, {expected} expected; shapes before: "
                f"{known or 'none'}. Something in it differs from call to call: a value read on the host, or a shape "
                f"that follows from data. {self.describe()}"
            )
        if shape not in known:
            known.append(shape)

    def report(self) -> dict:
        return {
            "compilations": self.compiled,
            "shapes": {name: [list(s) for s in shapes] for name, shapes in self.shapes.items()},
        }


STATE = "state.json"
"""The last file of a checkpoint: without it there is none."""


def find_checkpoints(folder: Path) -> list[Path]:
    """The complete ones, the newest last."""
    by_step = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := NAME.fullmatch(path.name))}
    return [by_step[step] for step in sorted(by_step) if (by_step[step] / STATE).is_file()]


NAME = re.compile(r"checkpoint-(\d+)")


def save_checkpoint(args: RunArguments, state: dict, write: Callable[[Path], None]) -> None:
    """In a folder beside it first, and renamed when it is on disk; older ones than --save_total_limit go."""
    folder = Path(args.output_dir) / f"checkpoint-{state['step']}"
    draft = folder.with_name(f"{folder.name}.unfinished")
    for old in (draft, folder):
        shutil.rmtree(old, ignore_errors=True)
    draft.mkdir(parents=True)
    write(draft)
    write_json(draft / STATE, state)
    for path in [*draft.rglob("*"), draft]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    draft.rename(folder)
    for old in find_checkpoints(folder.parent)[: -args.save_total_limit]:
        shutil.rmtree(old)


def load_state(folder: Path, run: dict) -> dict:
    """How far a checkpoint came. The end for one of another run: its rows or its weights would be others."""
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    different = [
        f"{name} {state['run'].get(name)}, now {value}"
        for name, value in run.items()
        if state["run"].get(name) != value
    ]
    if different:
        sys.exit(f"{folder} is of another run: {'; '.join(different)}. Take another --output_dir, or undo that.")
    return state


def write_json(path: Path, content: dict) -> None:
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


class EvaluationStopped(Exception):
    """By a signal: whoever sent it may not wait for its end."""


class StopOnSignal:
    """SIGTERM (the machine is taken back), Ctrl-C: the step is finished and saved. A second one ends the run at once.

    An evaluation is not finished: the run that goes on makes it.
    One of several hosts leaves both as they are: the others would wait for it.
    """

    def __init__(self, hosts: int = 1):
        self.signum = 0
        for signum in (signal.SIGTERM, signal.SIGINT) if hosts == 1 else ():
            signal.signal(signum, self.request)

    def request(self, signum, frame) -> None:
        signal.signal(signum, signal.SIG_DFL)
        self.signum = signum

    def check_evaluation(self) -> None:
        """Before each of its batches."""
        if self.signum:
            raise EvaluationStopped

    def evaluate_or_leave(self, evaluate: Callable[[], dict], step: int, save_strategy: str) -> dict:
        """Where nothing has been trained that is not saved."""
        try:
            return evaluate()
        except EvaluationStopped:
            self.leave(step, save_strategy)
            raise

    def leave(self, step: int, save_strategy: str) -> None:
        """Before the next step, if a signal came."""
        if self.signum:
            advice = (
                "run again to go on"
                if save_strategy == "steps" or not step
                else "nothing of it is saved (--save_strategy no)"
            )
            print(f"stopped by {signal.Signals(self.signum).name} after step {step}: {advice}", flush=True)
            sys.exit(128 + self.signum)


def check_loss(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        sys.exit(
            f"step {step}: the loss is {loss}. The last checkpoint is from before; take a smaller --learning_rate."
        )
    return loss
