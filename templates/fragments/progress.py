"""The log of a run: one line for each, that fits a terminal and reads well in a file."""

import time

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from run_report import RunReport

METRICS = {
    "eval_loss": "loss",
    "eval_perplexity": "perplexity",
    "eval_accuracy": "accuracy",
    "eval_macro_f1": "macro F1",
}


class PrintProgress(TrainerCallback):
    """Step, loss, learning rate, gradient norm, tokens/s since the last line, and the time that is left."""

    def __init__(self, report: RunReport):
        self.report = report

    def on_train_begin(self, args, state, control, **kwargs):
        self.step, self.clock, self.tokens = state.global_step, time.perf_counter(), 0
        self.evaluating, self.saved = 0.0, False

    def on_step_begin(self, args, state, control, **kwargs):
        if self.saved:  # that was no part of a step, and other callbacks had their share in it
            self.clock, self.evaluating, self.saved = time.perf_counter(), 0.0, False

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        if "eval_loss" in logs:
            self.evaluating += logs.get("eval_runtime", 0.0)  # not a part of the steps
            print(f"{describe_step(state)}  evaluation: {describe_metrics(logs)}", flush=True)
        elif "loss" in logs:
            print(f"{describe_step(state)}  {self.describe_logs(args, state, logs)}", flush=True)

    def describe_logs(self, args, state, logs: dict) -> str:
        now, tokens = time.perf_counter(), self.report.tokens.count_own() * args.world_size  # all have about as many
        steps, seconds = state.global_step - self.step, now - self.clock - self.evaluating
        parts = [f"loss {float(logs['loss']):.4g}"]
        parts += [f"lr {float(logs['learning_rate']):.2e}"] if "learning_rate" in logs else []
        parts += [f"grad {float(logs['grad_norm']):.3g}"] if "grad_norm" in logs else []
        if steps > 0 and seconds > 0:
            parts.append(f"{(tokens - self.tokens) / seconds:,.0f} tokens/s")
            parts += [f"{format_duration((state.max_steps - state.global_step) * seconds / steps)} left"]
        self.step, self.clock, self.tokens = state.global_step, now, tokens
        self.evaluating = 0.0
        return "  ".join(parts)

    def on_save(self, args, state, control, **kwargs):
        self.saved = True


def describe_step(state) -> str:
    width = len(str(state.max_steps))
    return f"step {state.global_step:>{width}}/{state.max_steps}"


def describe_metrics(logs: dict) -> str:
    return "  ".join(f"{name} {logs[key]:.4g}" for key, name in METRICS.items() if key in logs)


def format_duration(seconds: float) -> str:
    minutes, hours = divmod(round(seconds), 60), round(seconds) // 3600
    return f"{hours}:{minutes[0] % 60:02}:{minutes[1]:02}" if hours else f"{minutes[0]}:{minutes[1]:02}"


def print_lines(trainer: Trainer, report: RunReport) -> None:
    """These lines in the place of Trainer's dictionaries."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(PrintProgress(report))
