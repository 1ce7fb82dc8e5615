"""Checkpoints that survive a kill at any moment: each is sealed once it is complete, and only then resumed."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from torch import nn
from transformers import Trainer, TrainerCallback

SEAL = "complete.json"
"""Written last into a checkpoint: what run it belongs to, and every file with its size."""
LOCK = "train.lock"
SMALL_FILES_BYTES = 16 << 20
MAY_CHANGE = ("learning rate", "warmup", "length")
"""What a run may go on with that began with another value; that is printed, and stands in the model's README.md."""
LATER = ("processes", "Adam", "weight decay", "schedule", *MAY_CHANGE)
"""What seals of earlier versions leave out."""


class AlreadyTrained(Exception):
    """The checkpoint has reached the last step."""


def finish_training(trainer: Trainer) -> None:
    """What Trainer does after the last step, for a run that was ended there: the best model and the callbacks."""
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)


def name_tied_weights(model: nn.Module) -> None:
    """A checkpoint holds a tied weight once: Trainer takes the other name for a missing key unless it is named here."""
    tied = getattr(model, "all_tied_weights_keys", None)
    if tied and not model._keys_to_ignore_on_save:
        model._keys_to_ignore_on_save = set(tied)


def describe_run(trainer: Trainer, seq_len: int, trained_parameters: int) -> dict:
    """What a checkpoint depends on: to resume with another value would silently shift data or numbers."""
    args, dataset = trainer.args, trainer.train_dataset
    indices = range(0, len(dataset), max(1, len(dataset) // 64))
    sample = hashlib.sha256(repr([dataset[index] for index in indices]).encode(errors="surrogatepass"))
    return {
        "data": f"{len(dataset)} examples, sha256 {sample.hexdigest()[:16]}",
        "sequence length": seq_len,
        "global batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "trained parameters": trained_parameters,
        "weights": str(trainer.model.dtype),
        "autocast": "bf16" if args.bf16 else "fp16" if args.fp16 else "off",
        "optimizer": args.optim.value,
        "Adam": f"beta1 {args.adam_beta1:g}, beta2 {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}",
        "schedule": f"{args.lr_scheduler_type.value} {args.lr_scheduler_kwargs or ''}".strip(),
        "seed": args.seed,
        "processes": args.world_size,
        "learning rate": args.learning_rate,
        "weight decay": args.weight_decay,
        "warmup": args.warmup_steps,
        "length": f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs",
        "changes": [],
    }


def find_newest_checkpoint(output_dir: Path, run: dict) -> str | None:
    """The newest complete checkpoint of this run. What an interrupted save or delete left behind is removed."""
    lock_folder(output_dir)
    folders = [p for p in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    newest = None
    for folder in sorted(folders, key=lambda p: int(p.name.removeprefix("checkpoint-"))):
        if (sealed_run := read_seal(folder)) is None:
            print(f"{folder} is not complete: removed")
            shutil.rmtree(folder)
        else:
            newest, saved = folder, sealed_run
    if newest is None:
        return None
    fixed = [key for key in run if key not in (*MAY_CHANGE, "changes")]
    changed = list_changes(saved, run, fixed)
    if changed:
        different = "\n  ".join(changed)
        sys.exit(f"{newest} belongs to another run:\n  {different}\nUndo that, or take another --output_dir.")
    print(f"resuming from {newest}")
    return str(newest)


def list_changes(saved: dict, run: dict, keys: Iterable[str]) -> list[str]:
    """The values of a seal that are others now."""
    known = [key for key in keys if key in run and (key in saved or key not in LATER)]
    return [f"{key}: {saved.get(key)} then, {run[key]} now" for key in known if saved.get(key) != run[key]]


def lock_folder(folder: Path) -> None:
    """Two runs would remove each other's checkpoints. The lock is this process's, and gone with it however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        sys.exit(f"{folder}: another train.py is at work there. Wait for it, or take another --output_dir.")
    except OSError as error:  # some shared file systems have no locks
        print(f"{folder} cannot be locked ({error.strerror}): see that no other run writes there")


def read_seal(folder: Path) -> dict | None:
    """The run that a checkpoint belongs to; ``None`` if the seal or a file is missing, cut short or another."""
    try:
        match json.loads((folder / SEAL).read_text(encoding="utf-8")):
            case {"run": dict(run), "files": dict(files)}:
                complete = all((folder / name).stat().st_size == size for name, size in files.items())
                return run if complete else None
    except (OSError, ValueError):
        pass
    return None


def write_seal(folder: Path, run: dict) -> None:
    """Bring every file of the checkpoint to disk, then seal it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
    for path in files:
        sync_to_disk(path)
    seal = {"run": run, "files": {str(path.relative_to(folder)): path.stat().st_size for path in files}}
    draft = folder / f"{SEAL}.tmp"
    draft.write_text(json.dumps(seal, indent=2), encoding="utf-8")
    sync_to_disk(draft)
    draft.replace(folder / SEAL)
    sync_to_disk(folder)


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class FollowArguments(TrainerCallback):
    """A resumed run goes on at the learning rate of its arguments. Trainer's is the saved one: 0 after a last step."""

    def __init__(self, run: dict):
        self.run = run

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        if not state.global_step:
            return
        saved = read_seal(Path(args.output_dir) / f"checkpoint-{state.global_step}") or {}
        self.run["changes"] = list(saved.get("changes", []))
        changed = list_changes(saved, self.run, MAY_CHANGE)
        rates = [line for line in changed if not line.startswith("length")]
        if state.global_step >= state.max_steps:
            if rates:
                sys.exit(
                    f"nothing left to train: {args.output_dir} had reached step {state.global_step}, and nothing would "
                    f"come of this:\n  {'; '.join(rates)}\nTake another --output_dir, or train longer (--max_steps)."
                )
            return
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


class EndAtLastStep(TrainerCallback):
    """The last of the callbacks, for the others begin before it: Trainer would train one step too many."""

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            raise AlreadyTrained


class SealCheckpoints(TrainerCallback):
    """Seals each checkpoint once it is written; leaves one out where the disk has no room for it."""

    def __init__(self, run: dict):
        self.run = run

    def on_step_end(self, args, state, control, **kwargs):
        if not control.should_save:
            return
        control.should_log = True  # the loss is looked at before it is saved
        free = self.free_bytes(args.output_dir)
        if free < self.needed_bytes(kwargs["model"]):
            if state.is_world_process_zero:
                print(f"step {state.global_step}: not saved, {args.output_dir} has {free / 2**30:.1f} GiB left")
            control.should_save = False

    def on_epoch_end(self, args, state, control, **kwargs):
        self.on_step_end(args, state, control, **kwargs)  # --save_strategy epoch

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            write_seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.run)

    def free_bytes(self, folder: str) -> float:
        return shutil.disk_usage(folder).free

    def needed_bytes(self, model: nn.Module) -> int:
        """Weights, two optimizer states, and the small files."""
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        return 3 * trained + SMALL_FILES_BYTES
