"""What keeps a long run safe: sealed checkpoints, a stop at the first bad loss, a save on SIGTERM, a report."""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch.distributed as dist
from matplotlib.figure import Figure
from transformers import Trainer, TrainerCallback

from machine import peak_memory
from parallel import CheckParallel, from_first, largest, leave_together, wait_for_all

SEAL = "complete.json"
"""Written last into a checkpoint: what run it belongs to, and every file with its size."""


class AlreadyTrained(Exception):
    """The checkpoint has reached the last step."""


def train_safely(trainer: Trainer, seq_len: int) -> None:
    """Train from the newest complete checkpoint to the end, save the model, write the report."""
    args, folder = trainer.args, Path(str(trainer.args.output_dir))
    run = describe_run(args, trainer.model, trainer.train_dataset, seq_len)
    report = RunReport()
    for callback in (CheckParallel(trainer), SaveOnSignal(), SealCheckpoints(run), StopOnBadLoss(), report):
        trainer.add_callback(callback)
    newest = from_first(lambda: newest_checkpoint(folder, run))
    with contextlib.suppress(AlreadyTrained):
        trainer.train(resume_from_checkpoint=newest)
    trainer.save_model()
    report.write(folder, trainer.state)
    leave_together(trainer.accelerator)


def describe_run(args, model, dataset, seq_len: int) -> dict:
    """What a checkpoint depends on: to resume with another value would silently shift data or numbers."""
    picks = range(0, len(dataset), max(1, len(dataset) // 64))
    sample = hashlib.sha256(repr([dataset[i] for i in picks]).encode(errors="surrogatepass"))
    return {
        "data": f"{len(dataset)} examples, sha256 {sample.hexdigest()[:16]}",
        "sequence length": seq_len,
        "global batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "trained parameters": sum(p.ds_numel for p in model.parameters() if p.requires_grad),
        "weights": str(model.dtype),
        "autocast": "bf16" if args.bf16 else "fp16" if args.fp16 else "off",
        "optimizer": args.optim.value,
        "seed": args.seed,
        "processes": args.world_size,
    }


def newest_checkpoint(output_dir: Path, run: dict) -> str | None:
    """The newest complete checkpoint of this run. What an interrupted save or delete left behind is removed."""
    folders = [p for p in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    newest = None
    for folder in sorted(folders, key=lambda p: int(p.name.removeprefix("checkpoint-"))):
        if (sealed := read_seal(folder)) is None:
            print(f"{folder} is not complete: removed")
            shutil.rmtree(folder)
        else:
            newest, saved = folder, sealed
    if newest is None:
        return None
    changed = [f"{key}: {saved.get(key)} then, {value} now" for key, value in run.items() if saved.get(key) != value]
    if changed:
        different = "\n  ".join(changed)
        sys.exit(f"{newest} belongs to another run:\n  {different}\nUndo that, or take another --output_dir.")
    print(f"resuming from {newest}")
    return str(newest)


def read_seal(folder: Path) -> dict | None:
    """The run that a checkpoint belongs to; ``None`` if the seal or a file is missing or cut short."""
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in seal["files"].items())
    except (OSError, ValueError):
        return None
    return seal["run"] if whole else None


class SaveOnSignal(TrainerCallback):
    """SIGTERM (a scheduler taking the machine back) or Ctrl-C: finish the step, save, exit 143 or 130."""

    def __init__(self):
        self.signum = 0

    def on_train_begin(self, args, state, control, **kwargs):
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.request)

    def request(self, signum, frame):
        self.signum = signum  # it may come again: the launcher passes on what the whole group was sent

    def on_step_end(self, args, state, control, **kwargs):
        self.signum = int(largest(self.signum))  # all of them stop after the same step
        if self.signum:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args, state, control, **kwargs):
        if self.signum:
            if state.is_world_process_zero:
                name = signal.Signals(self.signum).name
                print(f"stopped by {name} after step {state.global_step}: run again to go on")
            sys.exit(128 + self.signum)


class SealCheckpoints(TrainerCallback):
    """Brings each checkpoint to disk and seals it: a kill or a power cut at any moment leaves a sealed one."""

    def __init__(self, run: dict):
        self.run = run

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            raise AlreadyTrained  # Trainer itself would train one step too many

    def on_step_end(self, args, state, control, **kwargs):
        if not control.should_save:
            return
        control.should_log = True  # the loss is looked at before it is saved
        needed = 16 * self.run["trained parameters"] + (16 << 20)  # fp32 weights, a copy, two states; the small files
        free = -largest(-shutil.disk_usage(args.output_dir).free)
        if free < needed:
            if state.is_world_process_zero:
                print(f"step {state.global_step}: not saved, {args.output_dir} has {free / 2**30:.1f} GiB left")
            control.should_save = False

    def on_save(self, args, state, control, **kwargs):
        wait_for_all()  # each has written its part
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
        for path in files:
            sync(path)
        seal = {"run": self.run, "files": {str(path.relative_to(folder)): path.stat().st_size for path in files}}
        draft = folder / f"{SEAL}.tmp"
        draft.write_text(json.dumps(seal, indent=2), encoding="utf-8")
        sync(draft)
        draft.replace(folder / SEAL)
        sync(folder)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class StopOnBadLoss(TrainerCallback):
    """Ends the run at the first loss or gradient that is not a number: nothing after it can be used."""

    def on_log(self, args, state, control, **kwargs):
        logs = kwargs["logs"]
        watched = ("loss",) if args.fp16 else ("loss", "grad_norm")  # fp16's loss scaler skips overflowing steps itself
        for name in watched:
            if not math.isfinite(logs.get(name, 0.0)):
                sys.exit(
                    f"step {state.global_step}: non-finite {name} ({logs[name]}). Earlier checkpoints are good; "
                    "look at this step's data, or lower learning_rate in config.yaml."
                )


class RunReport(TrainerCallback):
    """Times the steps, draws loss.svg with each checkpoint, and writes run.json once the model is saved."""

    def __init__(self):
        self.seconds = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.started_at, self.tokens_before = state.global_step, state.num_input_tokens_seen
        self.step, self.clock = state.global_step, time.perf_counter()

    def on_log(self, args, state, control, **kwargs):
        steps = state.global_step - self.step
        if steps:  # the loss was just read, so the device is done with them
            self.seconds += [(time.perf_counter() - self.clock) / steps] * steps
            self.step, self.clock = state.global_step, time.perf_counter()

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            draw_loss(Path(args.output_dir) / "loss.svg", state.log_history)
        self.clock = time.perf_counter()  # a save is not part of a step

    def write(self, output_dir: Path, state) -> None:
        """run.json: what was measured. The first step is kept apart, it warms up and compiles."""
        peak = {name: largest(value) for name, value in peak_memory().items()}  # of the process that needed most
        if not state.is_world_process_zero:
            return
        if not self.seconds:
            print(f"nothing left to train: {output_dir} had reached step {state.global_step}")
            return
        step_seconds = statistics.median(self.seconds[1:] or self.seconds)
        tokens_per_step = (state.num_input_tokens_seen - self.tokens_before) / len(self.seconds)
        report = {
            "step_seconds": step_seconds,
            "tokens_per_step": tokens_per_step,
            "tokens_per_second": tokens_per_step / step_seconds,
            **peak,
            "first_step_seconds": self.seconds[0],
            "steps": self.seconds[1:],
            "losses": [entry["loss"] for entry in state.log_history if "loss" in entry],
            "resumed_from": self.started_at,
            "finished_step": state.global_step,
            "processes": dist.get_world_size(),
            "versions": {name: version(name) for name in ("torch", "transformers", "accelerate", "datasets")},
        }
        draw_loss(output_dir / "loss.svg", state.log_history)
        (output_dir / "run.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        speed, peak = report["tokens_per_second"], report["peak_memory_gib"]
        print(f"{speed:,.0f} tokens/s, {peak:.2f} GiB at peak; model, run.json and loss.svg are in {output_dir}")


def draw_loss(path: Path, history: list[dict]) -> None:
    points = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True))
    axes.set(xlabel="step", ylabel="training loss")
    axes.grid(alpha=0.3)
    figure.savefig(path)
