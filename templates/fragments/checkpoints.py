"""Checkpoints that survive a kill at any moment: each is sealed once it is complete, and only then resumed."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

from torch import nn
from transformers import Trainer, TrainerCallback

SEAL = "complete.json"
"""Written last into a checkpoint: what run it belongs to, and every file with its size."""
LOCK = "train.lock"
SMALL_FILES_BYTES = 16 << 20


class AlreadyTrained(Exception):
    """The checkpoint has reached the last step."""


def finish_training(trainer: Trainer) -> None:
    """What Trainer does after the last step, for a run that was ended there: the best model and the callbacks."""
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)


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
        "seed": args.seed,
        "processes": args.world_size,
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
    saved = {"processes": run["processes"], **saved}  # seals of earlier versions leave them out
    changed = [f"{key}: {saved.get(key)} then, {value} now" for key, value in run.items() if saved.get(key) != value]
    if changed:
        different = "\n  ".join(changed)
        sys.exit(f"{newest} belongs to another run:\n  {different}\nUndo that, or take another --output_dir.")
    print(f"resuming from {newest}")
    return str(newest)


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
