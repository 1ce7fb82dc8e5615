"""A training loop of its own, for a model that is divided as Trainer does not save it, or does not run it.

It keeps Trainer's state and calls Trainer's callbacks in Trainer's order, so that flags, log, evaluation, signals and
checkpoints are those of Trainer; how the model is divided, and what that does to a step, is in division.py.
"""

import math
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

import loop_states
from divided_states import clip_gradients, create_optimizer, save_plain_model
from division import Division
from evaluation import FilledRows
from loop_arguments import LoopArguments
from row_order import EvaluationOrder, RowOrder, make_loader


class Loop:
    """What Trainer is to the rest of this project, in as few lines as a divided model needs."""

    compute_metrics = None  # its losses are of tokens

    def __init__(self, model, args: LoopArguments, division: Division, *, collate, processing_class, **datasets):
        self.model, self.args, self.division, self.collate = model, args, division, collate
        self.train_dataset, self.eval_dataset = datasets["train_dataset"], datasets["eval_dataset"]
        self.processing_class = processing_class
        loop_states.recompute_activations(model, args)
        self.accelerator = Accelerator()  # for sums over the processes, and their end
        self.order = RowOrder(len(self.train_dataset), args, division.copy)
        self.loader = make_loader(self.train_dataset, self.order, collate, args)
        self.steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * self.order.steps)
        self.optimizer = create_optimizer(model, args)
        self.lr_scheduler = loop_states.create_schedule(self.optimizer, self.steps, args)
        self.state, self.control = TrainerState(is_world_process_zero=args.process_index == 0), TrainerControl()
        handler = self.callback_handler = loop_states.list_callbacks(self)
        self.add_callback, self.remove_callback = handler.add_callback, handler.remove_callback

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        self.state = loop_states.begin(resume_from_checkpoint, self)
        loop_states.prepare_state(self.state, self.args, self.steps, math.ceil(self.steps / self.order.steps))
        self.loss, self.logged_step = torch.zeros((), device=self.args.device), self.state.global_step
        self.notify("on_train_begin")
        if self.args.eval_on_start:
            self._evaluate(None, None, skip_scheduler=True)
        while self.state.global_step < self.steps and not self.control.should_training_stop:
            self.train_epoch()
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        loop_states.finish_writing(self.callback_handler.callbacks, self.args)  # a signal may end the run now
        self.notify("on_train_end")

    def train_epoch(self) -> None:
        self.order.begin(*divmod(self.state.global_step, self.order.steps))
        self.notify("on_epoch_begin")
        for micro_batches in zip(*[iter(self.loader)] * self.args.gradient_accumulation_steps, strict=True):
            self.notify("on_step_begin")
            self.train_step(micro_batches)
            self.state.global_step += 1
            self.state.epoch = self.state.global_step / self.order.steps
            self.notify("on_step_end")
            self.log_evaluate_save()
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        self.notify("on_epoch_end")
        self.log_evaluate_save()

    def train_step(self, micro_batches: tuple[dict, ...]) -> None:
        self.model.train()
        count = sum(inputs["labels"][..., 1:].ne(-100).sum() for inputs in micro_batches).to(self.args.device)
        count = self.accelerator.reduce(count, "sum") / self.args.sharers
        count = loop_states.check_learned(count, self)  # tokens that this step learns from
        for inputs in self.division.join(micro_batches):
            loss = self.compute_loss(self.model, inputs, num_items_in_batch=count)
            self.division.backward(loss)
            self.loss += loss.detach()
        for _ in micro_batches[1:]:
            self.notify("on_substep_end")
        self.division.sum_gradients(self.model)
        self.gradient_norm = clip_gradients(self.model, self.args.max_grad_norm, self.division)
        self.learning_rate = self.lr_scheduler.get_last_lr()[0]
        self.notify("on_pre_optimizer_step")
        self.optimizer.step()
        self.notify("on_optimizer_step")
        self.lr_scheduler.step()
        self.optimizer.zero_grad()

    def compute_loss(self, model, inputs: dict, return_outputs: bool = False, num_items_in_batch=None):
        """In training this process's part of the step's loss; in an evaluation the batch's mean, on every process."""
        inputs = {name: value.to(self.args.device, non_blocking=True) for name, value in inputs.items()}
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16, cache_enabled=False):
            loss = self.division.compute_loss(model, inputs, num_items_in_batch)
        return (loss, None) if return_outputs else loss

    def log_evaluate_save(self) -> None:
        if self.control.should_log and self.state.global_step > self.logged_step:
            total = self.accelerator.reduce(self.loss, "sum").item() / self.division.loss_copies
            steps, self.logged_step = self.state.global_step - self.logged_step, self.state.global_step
            self.log({"loss": total / steps, "grad_norm": self.gradient_norm, "learning_rate": self.learning_rate})
            self.loss.zero_()
        if self.control.should_evaluate:
            is_best = self._determine_best_metric(metrics=self._evaluate(None, None), trial=None)
            if self.args.save_strategy == SaveStrategy.BEST:
                self.control.should_save = is_best
        if self.control.should_save:
            loop_states.save(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}", self)
            self.notify("on_save")

    def _evaluate(self, trial: None, ignore_keys_for_eval: None, skip_scheduler: bool = False) -> dict[str, float]:
        return self.evaluate()

    def evaluate(self) -> dict[str, float]:
        metrics = self.evaluation_loop(metric_key_prefix="eval").metrics
        self.log(metrics)
        self.notify("on_evaluate", metrics=metrics)
        return metrics

    def evaluation_loop(self, metric_key_prefix: str) -> SimpleNamespace:
        """evaluation.py looks at each loss, and adds their mean. Rows without a label fill the last batch."""
        rows, began = self.division.count_evaluated_rows(self.args), time.perf_counter()
        dataset = FilledRows(self.eval_dataset, rows * self.args.world_size)
        order = EvaluationOrder(len(dataset), rows, self.args.world_size, self.division.copy)
        self.model.eval()
        with torch.no_grad():
            for inputs in make_loader(dataset, order, self.collate, self.args):
                self.compute_loss(self.model, inputs)
                self.notify("on_prediction_step")
        return SimpleNamespace(metrics={f"{metric_key_prefix}_runtime": time.perf_counter() - began})

    def log(self, logs: dict[str, float]) -> None:
        self.state.log_history.append(logs | {"epoch": self.state.epoch or 0.0, "step": self.state.global_step})
        self.notify("on_log", logs=logs)

    def notify(self, event: str, **more) -> None:
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control, **more)

    def is_world_process_zero(self) -> bool:
        return self.state.is_world_process_zero

    def _determine_best_metric(self, metrics: dict[str, float], trial: None) -> bool:
        return loop_states.note_best(self.state, metrics, self.args)

    def _load_best_model(self) -> None:
        loop_states.load_best(self)

    def save_model(self, folder: str, _internal_call: bool = True) -> None:
        save_plain_model(Path(folder), self.model, self.processing_class)
