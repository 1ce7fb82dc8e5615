"""The log of a run: one line for each, that fits a terminal and reads well in a file."""

import statistics

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from evaluation import METRICS
from run_report import RunReport

RECENT = 20
"""Steps whose median tells the time that is left."""


class PrintProgress(TrainerCallback):
    """Step, loss, learning rate, gradient norm, tokens/s since the last line, and the time that is left."""

    def __init__(self, report: RunReport):
        self.report = report

    def on_train_begin(self, args, state, control, lr_scheduler, **kwargs):
        """Of a warmup of one step nothing is learned, and of one that is as long as the run little."""
        if not state.is_world_process_zero or state.global_step or any(lr_scheduler.get_last_lr()):
            return
        warmup, steps = args.get_warmup_steps(state.max_steps), state.max_steps
        if warmup == 1 or warmup >= steps:
            ends = " and the run ends before that is over" if warmup >= steps else ""
            print(f"step 1 of {steps} is taken at learning rate 0: it warms up{ends}. --warmup_steps 0 begins without")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        if "eval_loss" in logs:
            print(f"{describe_step(state)}  evaluation: {describe_metrics(logs)}", flush=True)
        elif "loss" in logs:
            print(f"{describe_step(state)}  {self.describe_logs(state, logs)}", flush=True)

    def describe_logs(self, state, logs: dict) -> str:
        parts = [f"loss {float(logs['loss']):.4g}"]
        parts += [f"lr {float(logs['learning_rate']):.2e}"] if "learning_rate" in logs else []
        parts += [f"grad {float(logs['grad_norm']):.3g}"] if "grad_norm" in logs else []
        seconds = self.report.seconds[1:] or self.report.seconds  # the first step warms up and compiles
        left = (state.max_steps - state.global_step) * statistics.median(seconds[-RECENT:])
        return "  ".join([*parts, f"{self.report.speed:,.0f} tokens/s", f"{format_duration(left)} left"])


def describe_step(state) -> str:
    width = len(str(state.max_steps))
    return f"step {state.global_step:>{width}}/{state.max_steps}"


def describe_metrics(logs: dict) -> str:
    return "  ".join(f"{name} {logs[f'eval_{key}']:.4g}" for key, name in METRICS.items() if f"eval_{key}" in logs)


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def print_lines(trainer: Trainer, report: RunReport) -> None:
    """These lines in the place of Trainer's dictionaries; ``report`` measures what they say."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(report)
    trainer.add_callback(PrintProgress(report))
