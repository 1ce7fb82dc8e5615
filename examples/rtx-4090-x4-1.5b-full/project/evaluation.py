"""Evaluation on rows that are held out: which they are, and a loss that does not depend on how they are batched."""

import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

METRICS = {"loss": "loss", "perplexity": "perplexity", "accuracy": "accuracy", "macro_f1": "macro F1"}
"""What an evaluation says, by its key: behind eval_ in the log, as it is in run.json."""

COMPARED = 50_000
"""Rows of the training data among which those of an evaluation file are looked for: some seconds."""


class EvaluationStopped(Exception):
    """By a signal. What has been trained is saved, and evaluated by the run that goes on."""


def hold_out(rows, config: dict, args, load: Callable):
    """Rows to train on, and rows to evaluate on: those of ``eval_data`` if it is a file, else that share of ``rows``.

    ``load`` reads a file that ``data`` of a config names. Where nothing is held out, the second is ``None`` and
    evaluation is off.
    """
    source, most = config["eval_data"], config["eval_rows"]
    if isinstance(source, str):
        held = load(config | {"data": source})
        check_labels_are_known(held, rows, source)
        picked = list(range(len(held)))
        if most is not None and len(held) > most:
            picked = sorted(random.Random(args.data_seed or args.seed).sample(picked, most))
            print(f"evaluation: {most:,} of the {len(held):,} rows of {source} (eval_rows in config.yaml)")
        held = select(held, picked)
        if args.process_index == 0:
            warn_of_trained_rows(held, rows, f"of {source} ")
        return rows, held
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    count = 0 if source is None else count_held(len(rows), source, most, batch)
    if count:
        picked = pick_rows(rows, count, args.data_seed or args.seed)
        count = len(picked)
    if not count:
        if source is not None and args.process_index == 0:
            print(f"no evaluation: {len(rows)} rows are one batch of {batch} at most, and none is left to hold out")
        return rows, turn_off(args)
    chosen = set(picked)
    rest, held = select(rows, [index for index in range(len(rows)) if index not in chosen]), select(rows, picked)
    if args.process_index == 0 and isinstance(rows, Dataset):  # sequences of a stream hardly repeat
        warn_of_trained_rows(held, rest, "that are held out ")
    return rest, held


def warn_of_trained_rows(held, rows, which: str) -> None:
    """What a model was trained on says nothing of how it does on anything else."""
    keys = [repr(row) for row in held]
    common = set(keys).intersection(map(repr, islice(rows, COMPARED)))
    if common:
        unit = "rows" if isinstance(rows, Dataset) else "sequences"
        count = f"{'at least ' if len(rows) > COMPARED else ''}{sum(key in common for key in keys):,}"
        print(f"{count} of the {len(held):,} {unit} {which}are trained on too: their loss is too good")


def turn_off(args) -> None:
    args.eval_strategy, args.eval_on_start, args.load_best_model_at_end = IntervalStrategy.NO, False, False


def keep_any(dataset, args):
    """The rows to evaluate on; none, where none of them has a token to learn."""
    if dataset is None or len(dataset):
        return dataset
    if args.process_index == 0:
        print("no evaluation: in no example that is held out does the answer begin within seq_len")
    return turn_off(args)


def count_held(rows: int, share: float, most: int | None, batch: int) -> int:
    """The share, one row at least and ``most`` at most; a global batch is left to train on."""
    wanted = max(1, int(rows * share))
    return max(0, min(wanted, wanted if most is None else most, rows - batch))


def pick_rows(rows, count: int, seed: int) -> list[int]:
    """Indices in order: the last sequences of a stream of tokens, else any rows, of each label its share."""
    if not isinstance(rows, Dataset):  # neighbours in a stream are parts of one text
        return list(range(len(rows) - count, len(rows)))
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    if "label" in rows.column_names:
        labels = rows["label"]
        frequency = Counter(labels)
        order = [index for index in order if frequency[labels[index]] > 1]  # an only one is to be learnt from
        order.sort(key=lambda index: labels[index])
        count = min(count, len(order) // 2)
    return sorted(order[int((place + 0.5) * len(order) / count)] for place in range(count))


def select(rows, indices: list[int]):
    return rows.select(indices) if isinstance(rows, Dataset) else Subset(rows, indices)


def check_labels_are_known(held, rows, source: str) -> None:
    if isinstance(rows, Dataset) and "label" in rows.column_names:
        unknown = sorted(set(held["label"]) - set(rows["label"]))
        if unknown:
            sys.exit(f"{source}: the label {unknown[0]!r} is not in the training data")


def prepare_evaluation(trainer: Trainer, patience: int | None) -> None:
    """Count losses by token, give every process equal batches, stop early after ``patience`` evaluations, if any."""
    if trainer.eval_dataset is None:
        return
    check_metric(trainer)
    average_over_tokens(trainer)
    compare_saved_models(trainer)
    leave_stopped_evaluations(trainer)
    if trainer.args.world_size > 1:
        batch = trainer.args.eval_batch_size * trainer.args.world_size
        trainer.eval_dataset = FilledRows(trainer.eval_dataset, batch)
    trainer.add_callback(EvaluateOnce())
    trainer.add_callback(FindBestCheckpoint())
    if patience is not None and trainer.args.eval_strategy == IntervalStrategy.NO:
        if trainer.args.process_index == 0:
            print("no early stopping: there is no evaluation (--eval_strategy)")
    elif patience is not None:
        trainer.args.metric_for_best_model = trainer.args.metric_for_best_model or "eval_loss"
        trainer.add_callback(StopEarly(early_stopping_patience=patience))


def check_metric(trainer: Trainer) -> None:
    """The best model is one by a metric that evaluations have."""
    given = trainer.args.metric_for_best_model
    has = ("loss", "perplexity") if trainer.compute_metrics is None else ("loss", "accuracy", "macro_f1")
    if given is not None and given.removeprefix("eval_") not in has:
        sys.exit(f"--metric_for_best_model {given}: evaluations have {', '.join(has)}")


def compare_saved_models(trainer: Trainer) -> None:
    """The best model is the best of those that are saved: of another one there is nothing to keep.

    Trainer takes the step of any evaluation for the best one's, and then loads another checkpoint, or finds it removed.
    """
    determine_best = trainer._determine_best_metric

    def determine_best_saved(metrics: dict[str, float], trial) -> bool:
        args = trainer.args
        saved = trainer.control.should_save or args.save_strategy == SaveStrategy.BEST
        return (saved or not args.load_best_model_at_end) and determine_best(metrics=metrics, trial=trial)

    trainer._determine_best_metric = determine_best_saved


def leave_stopped_evaluations(trainer: Trainer) -> None:
    """What a signal stops is saved without its evaluation: that of the checkpoint comes first when the run goes on."""
    evaluate, determine_best = trainer._evaluate, trainer._determine_best_metric

    def evaluate_or_stop(trial, ignore_keys_for_eval, skip_scheduler: bool = False) -> dict[str, float]:
        state = trainer.state
        try:  # Trainer's evaluation on start moves no schedule
            metrics = evaluate(trial, ignore_keys_for_eval, skip_scheduler=skip_scheduler and not state.global_step)
        except EvaluationStopped:
            return {}
        if skip_scheduler and state.global_step:
            trainer.control.should_save = True  # it is saved: the best model may be this one
            if determine_best(metrics=metrics, trial=trial):
                state.best_model_checkpoint = str(Path(trainer.args.output_dir) / f"checkpoint-{state.global_step}")
            trainer.control.should_save = False
        return metrics

    def determine_best_evaluated(metrics: dict[str, float], trial) -> bool:
        return determine_best(metrics=metrics, trial=trial) if metrics else trainer.control.should_save

    trainer._evaluate, trainer._determine_best_metric = evaluate_or_stop, determine_best_evaluated


class EvaluateOnce(TrainerCallback):
    """A resumed run was evaluated before its first step already, and where it was saved, unless a signal was sooner."""

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            args.eval_on_start = lacks_evaluation(args, state)


def lacks_evaluation(args, state) -> bool:
    """Whether an evaluation that follows this step is not in the log."""
    if any(entry["step"] == state.global_step and "eval_loss" in entry for entry in state.log_history):
        return False
    if args.eval_strategy == IntervalStrategy.EPOCH:
        return float(state.epoch).is_integer() and args.eval_delay <= state.epoch
    at_step = state.global_step % state.eval_steps == 0 or state.global_step >= state.max_steps
    return args.eval_strategy == IntervalStrategy.STEPS and at_step and args.eval_delay <= state.global_step


class FindBestCheckpoint(TrainerCallback):
    """A checkpoint has the full path of the best one: after a move nothing is there, or somebody else's run."""

    def on_train_begin(self, args, state, control, **kwargs):
        if not state.global_step or state.best_global_step is None:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
        if folder.is_dir():
            state.best_model_checkpoint = str(folder)
            return
        state.best_model_checkpoint = None
        if not args.load_best_model_at_end:  # early stopping compares losses, of whichever steps were saved
            return
        state.best_global_step = state.best_metric = None
        if state.is_world_process_zero:
            print(
                f"the best checkpoint so far, {folder.name}, is not in {args.output_dir}: the best from here on is kept"
            )


class StopEarly(EarlyStoppingCallback):
    """Trainer's, which says so, counts on in a resumed run, and saves where it stops: a second start ends there too."""

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.get(type(self).__name__)
        if state.global_step and saved:
            self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
            control.should_training_stop = self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if self.early_stopping_patience_counter < self.early_stopping_patience:
            return
        control.should_save |= args.save_strategy != "no"
        if state.is_world_process_zero:
            print(
                f"step {state.global_step}: stopped early, {self.early_stopping_patience} evaluations without a better "
                f"{args.metric_for_best_model} (early_stopping in config.yaml)"
            )


class FilledRows(TorchDataset):
    """Rows, and behind them as many without a label as make the last batch full: Accelerate would repeat rows there."""

    def __init__(self, rows, batch: int):
        self.rows, self.batch = rows, batch

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.batch) * self.batch

    def __getitem__(self, index: int) -> dict:
        if index >= len(self):
            raise IndexError(index)
        if index < len(self.rows):
            return self.rows[index]
        row = self.rows[0]
        labels = row["labels"]
        return {**row, "labels": -100 if isinstance(labels, int) else [-100] * len(labels)}


def average_over_tokens(trainer: Trainer) -> None:
    """Make eval_loss the mean over all trained tokens (a classifier's: over rows), and add perplexity to it.

    Trainer's own is a mean of batches' means: it moves with the size of batches and the number of processes.
    """
    compute_loss, evaluation_loop = trainer.compute_loss, trainer.evaluation_loop
    sums: list[torch.Tensor] = []

    def sum_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        if model.training:
            return compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        labels = inputs["labels"]
        count = (labels[..., 1:] if labels.dim() > 1 else labels).ne(-100).sum()  # each token predicts the next
        result = compute_loss(model, inputs, return_outputs=return_outputs)
        loss = (result[0] if return_outputs else result).detach().float()
        count = count.to(loss.device)  # a loop of its own moves inputs where it computes their loss
        sums.append(torch.stack([torch.where(count > 0, loss * count, 0.0), count.float()]))
        return result

    def loop(*arguments, metric_key_prefix: str = "eval", **keywords):
        sums.clear()
        output = evaluation_loop(*arguments, metric_key_prefix=metric_key_prefix, **keywords)
        total, count = trainer.accelerator.reduce(torch.stack(sums).double().sum(0).float(), "sum").tolist()
        loss = total / count if count else math.nan
        output.metrics[f"{metric_key_prefix}_loss"] = loss
        if trainer.compute_metrics is None:  # a loss of tokens
            output.metrics[f"{metric_key_prefix}_perplexity"] = math.exp(min(loss, 700.0))
        return output

    trainer.compute_loss, trainer.evaluation_loop = sum_loss, loop


def describe_evaluation(trainer: Trainer) -> dict:
    """What run.json says of the evaluations: each with its step, that before the first, and that of the kept model."""
    if trainer.eval_dataset is None:
        return {}
    dataset = trainer.eval_dataset
    evaluations = [
        {"step": entry["step"]} | {key: entry[f"eval_{key}"] for key in (*METRICS, "runtime") if f"eval_{key}" in entry}
        for entry in trainer.state.log_history
        if "eval_loss" in entry
    ]
    if not evaluations:
        return {}
    is_best = trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint
    kept = trainer.state.best_global_step if is_best else trainer.state.global_step
    mistakes = getattr(trainer.compute_metrics, "mistakes", {})  # of a classifier
    rows = len(dataset.rows if isinstance(dataset, FilledRows) else dataset)
    before = evaluations[0] if evaluations[0]["step"] == 0 else None
    after = next((row for row in reversed(evaluations) if row["step"] == kept), evaluations[-1])
    return {
        "eval": {"before": before, "after": after, "rows": rows},
        "evaluations": evaluations,
        "eval_rows": rows,
        "kept_step": kept,
        **mistakes,
    }
