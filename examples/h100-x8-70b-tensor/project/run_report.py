"""What a training measured: the time of each step, loss.svg, run.json."""

import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from matplotlib.figure import Figure
from transformers import TrainerCallback

from final_model import describe_end
from token_count import TokenCount

PACKAGES = ("torch", "transformers", "accelerate", "datasets")
FIGURES = "figures.json"
"""In every checkpoint: what was measured up to it, for a run that is ended after its last one."""


class RunReport(TrainerCallback):
    """Times the steps, draws loss.svg with each checkpoint, and writes run.json once the model is saved.

    ``measure`` and ``describe`` give what its figures hold besides: memory at the peak, evaluations.
    """

    def __init__(
        self,
        run: dict | None = None,
        measure: Callable[[], dict[str, float]] = dict,
        describe: Callable[[], dict] = dict,
    ):
        self.run = run or {}
        self.measure, self.describe = measure, describe
        self.seconds: list[float] = []
        self.tokens: TokenCount | None = None
        self.tokens_seen = 0  # without padding, of all processes, up to the last log
        self.speed = 0.0  # tokens/s between the last two logs

    def on_train_begin(self, args, state, control, **kwargs):
        self.started_at, self.tokens = state.global_step, TokenCount(kwargs["train_dataloader"])
        self.step, self.clock = state.global_step, None

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.tokens.begin_epoch()
        self.clock = self.clock or time.perf_counter()  # the first evaluation and its answers are not part of a step

    def on_substep_end(self, args, state, control, **kwargs):
        self.tokens.trained += 1

    def on_step_end(self, args, state, control, **kwargs):
        self.tokens.trained += 1

    def on_log(self, args, state, control, **kwargs):
        steps = state.global_step - self.step
        if steps:  # the loss was just read, so the device is done with them
            seconds, tokens = time.perf_counter() - self.clock, self.tokens.total(args.device)[0]
            self.seconds += [seconds / steps] * steps
            self.tokens_seen, self.speed = tokens, (tokens - self.tokens_seen) / seconds
            self.step, self.clock = state.global_step, time.perf_counter()

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if self.clock:
            self.clock += metrics.get("eval_runtime", 0.0)

    def write_figures(self, args, state) -> None:
        """Into the checkpoint, before it gets its seal."""
        figures = self.describe_figures(args)
        if state.is_world_process_zero:
            write_json(Path(args.output_dir) / f"checkpoint-{state.global_step}" / FIGURES, figures | self.describe())

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            draw_loss(Path(args.output_dir) / "loss.svg", state.log_history)
        self.clock = time.perf_counter()  # a save is not part of a step, and follows a log

    def describe_figures(self, args) -> dict:
        """The first step is kept apart, it warms up and compiles. Nothing, where no step was measured."""
        tokens, places = self.tokens.total(args.device) if self.tokens else (0, 0)
        memory = self.measure()
        if not self.seconds:
            return {}
        step_seconds = statistics.median(self.seconds[1:] or self.seconds)
        tokens_per_step = tokens / len(self.seconds)
        return {
            "step_seconds": step_seconds,
            "tokens_per_step": tokens_per_step,
            "tokens_per_second": tokens_per_step / step_seconds,  # without padding
            "padding_share": 1 - tokens / places,
            **memory,
            "first_step_seconds": self.seconds[0],
            "steps": self.seconds[1:],
            "resumed_from": self.started_at,
        }

    def build(self, args, state, **more) -> dict:
        """What run.json holds: what was measured, here or before the checkpoint that this began with, and ``more``."""
        figures = self.describe_figures(args)
        folder = Path(args.output_dir)
        if not figures and state.is_world_process_zero:
            print(f"nothing left to train: {folder} {describe_end(state)}. Its model and its report are written now")
            figures = read_figures(folder / f"checkpoint-{state.global_step}" / FIGURES)
        return {
            "schema": 1,
            **figures,
            "run": {name: value for name, value in self.run.items() if name != "changes"},
            "losses": [entry["loss"] for entry in state.log_history if "loss" in entry],
            "finished_step": state.global_step,
            "ended": describe_end(state),
            "processes": args.world_size,
            "versions": {name: version(name) for name in PACKAGES},
            "changes": self.run.get("changes", []),  # of the arguments, while it trained
            **self.describe(),
            **more,
        }

    def write(self, args, state, result: dict) -> None:
        """loss.svg, then run.json: it says that the run is finished, and is the last to be written."""
        folder = Path(args.output_dir)
        draw_loss(folder / "loss.svg", state.log_history)
        write_json(folder / "run.json", result)
        if "tokens_per_second" in result:
            speed, peak = result["tokens_per_second"], result["peak_memory_gib"]
            print(f"{speed:,.0f} tokens/s, {peak:.2f} GiB at peak; model, run.json and loss.svg are in {folder}")


def read_figures(path: Path) -> dict:
    """Nothing, where a checkpoint was saved without."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_json(path: Path, content: dict | list) -> None:
    """At once: who reads it finds the old file or the new one."""
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


def draw_loss(path: Path, history: list[dict]) -> None:
    points = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), label="training")
    evaluations = [(entry["step"], entry["eval_loss"]) for entry in history if "eval_loss" in entry]
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), marker="o", label="evaluation")
        axes.legend()
    axes.set(xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    draft = path.with_name(f"{path.name}.tmp")
    figure.savefig(draft, format="svg")
    draft.replace(path)
