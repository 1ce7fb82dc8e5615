"""What Trainer keeps of a run, for loop.py: the schedule, who is told of its events, and how far it has come."""

import os
import random
from pathlib import Path

import numpy as np
import torch
from transformers import get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, ExportableState, TrainerState
from transformers.trainer_pt_utils import safe_globals

from divided_states import load_states, save_states

STATE = "trainer_state.json"


def create_schedule(optimizer: torch.optim.Optimizer, steps: int, args):
    return get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )


def prepare_state(state: TrainerState, args, steps: int, epochs: int) -> None:
    """What is of this run and this process, also in a state that was saved by others."""
    state.max_steps, state.num_train_epochs = steps, epochs
    state.is_world_process_zero = args.process_index == 0
    state.is_local_process_zero = args.local_process_index == 0
    state.compute_steps(args, steps)


def recompute_activations(model, args) -> None:
    """If asked for. Of --activation_checkpointing_kwargs two are the model's, the others torch.utils.checkpoint's."""
    if not args.activation_checkpointing:
        return
    options = dict(args.activation_checkpointing_kwargs or {})
    own = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
    model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None, **own)


def list_callbacks(loop) -> CallbackHandler:
    """Trainer's own: what decides when to log, evaluate and save, and the trackers of --report_to."""
    callbacks = [DefaultFlowCallback, *get_reporting_integration_callbacks(loop.args.report_to)]
    handler = CallbackHandler(callbacks, loop.model, loop.processing_class, loop.optimizer, loop.lr_scheduler)
    handler.train_dataloader = loop.loader
    return handler


def save(folder: Path, loop) -> None:
    """Every process writes its parts and its random numbers, the first one all else."""
    save_states(folder, loop.model, loop.optimizer)
    rank, state = int(os.environ["RANK"]), loop.state
    numbers = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    if device := torch.accelerator.current_accelerator(check_available=True):
        numbers[device.type] = torch.get_device_module(device).get_rng_state()
    torch.save(numbers, folder / f"rng_state_{rank}.pth")
    best = folder.with_name(f"checkpoint-{state.best_global_step}")
    if state.best_global_step and best.is_dir():
        state.best_model_checkpoint = str(best)
    if rank == 0:
        for callback in (*loop.callback_handler.callbacks, loop.control):
            if isinstance(callback, ExportableState):
                state.stateful_callbacks[type(callback).__name__] = callback.state()
        torch.save(loop.lr_scheduler.state_dict(), folder / "scheduler.pt")
        state.save_to_json(str(folder / STATE))


def load(folder: Path, loop) -> TrainerState:
    """The state that was saved. A process that was not there then takes the random numbers of the first."""
    load_states(folder, loop.model, loop.optimizer)
    own = folder / f"rng_state_{os.environ['RANK']}.pth"
    with safe_globals():
        numbers = torch.load(own if own.exists() else folder / "rng_state_0.pth", weights_only=True)
    schedule, groups = torch.load(folder / "scheduler.pt", weights_only=True), len(loop.optimizer.param_groups)
    # one rate for all weights, which another division has in another number of groups (create_optimizer)
    equal = {name: value[:1] * groups for name, value in schedule.items() if isinstance(value, list)}
    loop.lr_scheduler.load_state_dict(schedule | equal)
    random.setstate(numbers["python"])
    np.random.set_state(numbers["numpy"])
    torch.random.set_rng_state(numbers["cpu"])
    device = torch.accelerator.current_accelerator(check_available=True)
    if device and device.type in numbers:
        torch.get_device_module(device).set_rng_state(numbers[device.type])
    return TrainerState.load_from_json(str(folder / STATE))


def note_best(state: TrainerState, metrics: dict[str, float], args) -> bool:
    """Whether this evaluation is the best so far by --metric_for_best_model, which the state then remembers."""
    if args.metric_for_best_model is None:
        return False
    value = metrics[f"eval_{args.metric_for_best_model.removeprefix('eval_')}"]
    best = state.best_metric
    better = best is None or (value > best if args.greater_is_better else value < best)
    if better:
        state.best_metric, state.best_global_step = value, state.global_step
    return better
