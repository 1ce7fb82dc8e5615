"""Checkpoints that survive a kill at any moment: sealed once they are complete, compared before they are resumed."""

import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import TrainerState
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import SaveStrategy

from run_folder import keep_finished_run, list_checkpoints, put_away, rotate_checkpoints
from run_identity import COMPARED, COPIES, MAY_CHANGE, list_changes
from seals import begin_checkpoint, find_damage, has_hashes, read_seal, write_seal

SMALL_FILES_BYTES = 16 << 20
STATES = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth")
"""What Trainer reads with torch.load, which takes no code."""


class AlreadyTrained(Exception):
    """The checkpoint is of a run that has ended."""


def finish_training(trainer: Trainer) -> None:
    """What Trainer does after the last step, for a run that was ended there: evaluation, best model, callbacks."""
    if trainer.args.eval_on_start:  # of a signal's checkpoint
        trainer._evaluate(None, None, skip_scheduler=True)
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)


def find_newest_checkpoint(output_dir: Path, run: dict) -> str | None:
    """The newest checkpoint of this run that is as it was saved. Those that are newer, and are not, are put away.

    Ends the process where one is, and cannot be read: a package that is missing is no reason to begin at step 1.
    """
    problems: dict[Path, Problem] = {}
    newest = None
    for folder in reversed(list_checkpoints(output_dir).values()):
        started = time.perf_counter()
        problem = find_problem(folder, run)
        if problem is None:
            newest = folder
            break
        problems[folder] = problem
    for folder, problem in problems.items():
        if newest is None and problem.intact:
            sys.exit(
                f"{folder} is as it was saved, and {problem.text}.\nInstall the packages that it was saved with, or "
                "take another --output_dir."
            )
    for folder, problem in problems.items():
        put_away(folder, problem.text)
    if newest is not None:
        print(f"resuming from {newest}, compared with its seal in {time.perf_counter() - started:.1f} s")
        return str(newest)
    keep_finished_run(output_dir)
    if problems:
        print(f"{output_dir} has no checkpoint to resume: training begins at step 1")
    return None


class Problem(NamedTuple):
    """Why a checkpoint is not resumed. ``intact``: it is as it was saved, byte for byte."""

    text: str
    intact: bool = False


def find_problem(folder: Path, run: dict) -> Problem | None:
    """Why a checkpoint cannot be resumed. Ends the process where it is another run's."""
    seal = read_seal(folder)
    if seal is None:
        return Problem("it has no readable seal of train.py")
    changed = list_changes(seal["run"], run, [key for key in run if key not in (*MAY_CHANGE, *COMPARED, "changes")])
    if changed:
        different = "\n  ".join(changed)
        sys.exit(f"{folder} belongs to another run:\n  {different}\nUndo that, or take another --output_dir.")
    if not has_hashes(seal):
        print(f"{folder} was sealed by an earlier version, without hashes: only sizes are compared")
    damage = find_damage(folder, seal)
    return Problem(damage) if damage else find_unreadable(folder, has_hashes(seal))


def find_unreadable(folder: Path, hashed: bool) -> Problem | None:
    """What Trainer would fail to read, after it has begun to."""
    try:
        path = folder / "trainer_state.json"
        step = TrainerState.load_from_json(str(path)).global_step
        if folder.name != f"checkpoint-{step}":  # a copy under another name: what is saved next would go over it
            return Problem(f"it is of step {step}")
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt"):
                continue
        with safe_globals():
            for path in (path for pattern in STATES for path in folder.glob(pattern)):
                torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # of four file formats
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        foreign = re.search(r"Unsupported global: GLOBAL (\S+)", text)  # torch.load names it in its tenth line
        line = f"it holds {foreign[1]}" if foreign else text.partition("\n")[0][:100]
        return Problem(f"{path.name} cannot be read ({type(error).__name__}: {line})", intact=hashed)
    return None


class FollowArguments(TrainerCallback):
    """A resumed run goes on at the learning rate of its arguments. Trainer's is the saved one: 0 after a last step."""

    def __init__(self, run: dict):
        self.run = run

    def on_train_begin(self, args, state, control, lr_scheduler, **kwargs):
        if not state.global_step:
            return
        seal = read_seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        saved = seal["run"] if seal else {}
        self.run["changes"] = list(saved.get("changes", []))
        changed = list_changes(saved, self.run, MAY_CHANGE)
        rates = [line for line in changed if not line.startswith(("length", COPIES))]
        if has_ended(state, control):
            if rates:
                sys.exit(
                    f"nothing left to train: {args.output_dir} had reached step {state.global_step}, and nothing would "
                    f"come of this:\n  {'; '.join(rates)}\nTake another --output_dir, or train longer (--max_steps)."
                )
            return
        measured = list_changes(saved, self.run, COMPARED)
        if measured and state.best_metric is not None:
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None
            self.run["changes"] += [f"from step {state.global_step} on: {measured[0]}"]
            if state.is_world_process_zero:
                print(f"{measured[0]}: the best model is that of the evaluations from here on")
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # DeepSpeed's is wrapped
        if hasattr(scheduler, "lr_lambdas"):
            rate = set_learning_rate(args.learning_rate, scheduler)
        elif rates:
            sys.exit(
                f"{type(scheduler).__name__} cannot go on otherwise than it began:\n  {'; '.join(rates)}\nUndo that."
            )
        else:
            return
        if changed:
            lines = [f"from step {state.global_step} on: {line}" for line in changed]
            self.run["changes"] += lines
            if state.is_world_process_zero:
                print("\n".join([*lines, f"the learning rate goes on at {rate:.3g}"]))


def set_learning_rate(learning_rate: float, scheduler) -> float:
    """What the schedule of now has at this step, of the first parameters."""
    if scheduler.base_lrs[0]:
        scheduler.base_lrs = [rate * (learning_rate / scheduler.base_lrs[0]) for rate in scheduler.base_lrs]
    else:
        scheduler.base_lrs = [learning_rate for _ in scheduler.base_lrs]
    groups = scheduler.optimizer.param_groups
    for group, rate, function in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["initial_lr"], group["lr"] = rate, rate * function(scheduler.last_epoch)
    scheduler._last_lr = [group["lr"] for group in groups]
    return groups[0]["lr"]


def has_ended(state, control) -> bool:
    """After its last step, or where it was stopped early: StopEarly says so before these callbacks."""
    return state.global_step >= state.max_steps or bool(state.global_step and control.should_training_stop)


class EndAtLastStep(TrainerCallback):
    """The last of the callbacks, for the others begin before it: Trainer would train one step too many."""

    first_step: int | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if has_ended(state, control):
            raise AlreadyTrained
        self.first_step = state.global_step

    def on_evaluate(self, args, state, control, **kwargs):
        """A signal had ended the evaluation that stops this run early."""
        if state.global_step == self.first_step and control.should_training_stop:
            args.eval_on_start = False
            raise AlreadyTrained


class SealCheckpoints(TrainerCallback):
    """Seals each checkpoint once it is written, then removes old ones; leaves one out where the disk has no room.

    ``before_seal`` adds what a checkpoint is to hold besides.
    """

    def __init__(self, run: dict, before_seal: Callable[..., None] = lambda args, state: None):
        self.run, self.before_seal = run, before_seal
        self.known: dict[str, str] = {}
        self.limit: int | None = None
        self.looked_at: str | None = None
        self.begun = self.first_step = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step = state.global_step
        if args.save_total_limit is not None:  # Trainer would remove the old one before the new one has its seal
            self.limit, args.save_total_limit = args.save_total_limit, None
        best = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and best.is_dir():  # it was saved with the path of then, and the run may have moved
            state.best_model_checkpoint = str(best)
        if has_ended(state, control):
            self.remove_old(args, state)  # it may have been ended before it did
            self.leave_damaged_best(args, state)

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or control.should_evaluate:  # in which a signal may ask for a save
            control.should_log = True  # the loss is looked at before it is saved
        if control.should_save:
            self.begin(args, state, control, kwargs["model"])

    def begin(self, args, state, control, model: nn.Module) -> None:
        """Before anything is written, where there is room for it."""
        free, self.begun = self.free_bytes(args.output_dir), state.global_step
        if free < self.needed_bytes(model):
            if state.is_world_process_zero:
                print(f"step {state.global_step}: not saved, {args.output_dir} has {free / 2**30:.1f} GiB left")
            control.should_save = False
        elif state.is_world_process_zero:
            begin_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def begin_after_evaluations(self, trainer: Trainer) -> None:
        """They ask for saves too: where a signal ends one, of the best step, of an early stop."""
        determine_best = trainer._determine_best_metric

        def determine_best_and_begin(metrics: dict[str, float], trial) -> bool:
            args, state, control = trainer.args, trainer.state, trainer.control
            before = state.best_metric, state.best_global_step, state.best_model_checkpoint
            is_best = determine_best(metrics=metrics, trial=trial)
            if args.save_strategy == SaveStrategy.BEST:
                control.should_save = is_best
            if control.should_save and self.begun != state.global_step:
                self.begin(args, state, control, trainer.model)
                if not control.should_save:
                    state.best_metric, state.best_global_step, state.best_model_checkpoint = before
            return is_best and control.should_save

        trainer._determine_best_metric = determine_best_and_begin

    def on_epoch_end(self, args, state, control, **kwargs):
        self.on_step_end(args, state, control, **kwargs)  # --save_strategy epoch
        if control.should_training_stop and not control.should_save:  # else on_save follows
            self.leave_damaged_best(args, state)

    def on_evaluate(self, args, state, control, **kwargs):
        if control.should_training_stop and state.global_step == self.first_step:  # a signal was sooner than this stop
            self.leave_damaged_best(args, state)

    def on_save(self, args, state, control, **kwargs):
        self.before_seal(args, state)
        self.seal(args, state)
        if control.should_training_stop:
            self.leave_damaged_best(args, state)

    def seal(self, args, state) -> None:
        if state.is_world_process_zero:
            write_seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.run, self.known)
        self.remove_old(args, state)

    def remove_old(self, args, state) -> None:
        if state.is_world_process_zero:
            rotate_checkpoints(Path(args.output_dir), state.global_step, self.limit, state.best_global_step)

    def leave_damaged_best(self, args, state) -> None:
        """Trainer reads the best model back at the end; the disk may have had it for days."""
        best, looked_at = state.best_model_checkpoint, self.looked_at
        self.looked_at = best
        if args.load_best_model_at_end and best not in (None, looked_at) and self.is_damaged(Path(best), state):
            if state.is_world_process_zero:
                print(f"{best}, the best model, is not as it was saved: the last one is kept")
            state.best_model_checkpoint = None

    def is_damaged(self, checkpoint: Path, state) -> bool:
        if not state.is_world_process_zero:
            return False
        seal = read_seal(checkpoint)
        return seal is None or find_damage(checkpoint, seal) is not None

    def free_bytes(self, folder: str) -> float:
        return shutil.disk_usage(folder).free

    def needed_bytes(self, model: nn.Module) -> int:
        """Weights, two optimizer states, and the small files."""
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        return 3 * trained + SMALL_FILES_BYTES
