"""What Trainer keeps of a run, for loop.py: the schedule, who is told of its events, and how far it has come."""

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import get_scheduler, set_seed
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, ExportableState, TrainerState
from transformers.trainer_pt_utils import safe_globals

from background_save import begin_to_write, finish_writing
from divided_states import PARTS, collect_states, load_states, make_contiguous, save_states

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


def begin(checkpoint: str | None, loop) -> TrainerState:
    """At the first step, or where the checkpoint was saved."""
    if checkpoint is not None:
        return load(Path(checkpoint), loop)
    seed_dropout(loop, 0)
    return loop.state


def load_best(loop) -> None:
    """Its weights. A run that ends early may be writing it still: it is read once all processes have sealed it."""
    finish_writing(loop.callback_handler.callbacks, loop.args)
    load_states(Path(loop.state.best_model_checkpoint), loop.model)


def seed_dropout(loop, step: int) -> None:
    """Trainer seeds all processes alike, so that each drops the same of other rows. Here only a tensor-parallel group
    does, which computes one activation together.
    """
    number, _, _ = loop.division.seed_place
    set_seed(int(np.random.SeedSequence((loop.args.seed, step, number)).generate_state(1)[0]))


def check_learned(count: torch.Tensor, loop) -> torch.Tensor:
    """The loss is a mean over so many tokens: of none it is no number, and no weight would be one after the step."""
    if not count.item():
        finish_writing(loop.callback_handler.callbacks, loop.args)
        step = loop.state.global_step + 1
        message = f"step {step}: all labels of its rows are -100, it would learn nothing. Mend data.py, or the data."
        sys.exit(message if loop.is_world_process_zero() else 1)
    return count


def save(folder: Path, loop) -> None:
    """Every process writes its parts and its random numbers, the first one all else."""
    if loop.args.async_save:
        folder.mkdir(parents=True, exist_ok=True)  # what is beside the parts is here before them
        begin_to_write(make_contiguous(collect_states(loop.model, loop.optimizer)), folder / PARTS)
    else:
        save_states(folder, loop.model, loop.optimizer)
    rank, state = int(os.environ["RANK"]), loop.state
    numbers = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    if device := torch.accelerator.current_accelerator(check_available=True):
        numbers[device.type] = torch.get_device_module(device).get_rng_state()
    torch.save(numbers | {"place": loop.division.seed_place}, folder / f"rng_state_{rank}.pth")
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
    """The state that was saved. Random numbers go on where each process has the rows, tokens and layers that it had."""
    load_states(folder, loop.model, loop.optimizer)
    state = TrainerState.load_from_json(str(folder / STATE))
    schedule, groups = torch.load(folder / "scheduler.pt", weights_only=True), len(loop.optimizer.param_groups)
    # one rate for all weights, which another division has in another number of groups (create_optimizer)
    equal = {name: value[:1] * groups for name, value in schedule.items() if isinstance(value, list)}
    loop.lr_scheduler.load_state_dict(schedule | equal)
    own = folder / f"rng_state_{os.environ['RANK']}.pth"
    with safe_globals():
        numbers = torch.load(own, weights_only=True) if own.exists() else {}
    if numbers.get("place") == loop.division.seed_place:
        restore_random_numbers(numbers)
    else:
        seed_dropout(loop, state.global_step)
    return state


def restore_random_numbers(numbers: dict) -> None:
    random.setstate(numbers["python"])
    np.random.set_state(numbers["numpy"])
    torch.random.set_rng_state(numbers["cpu"])
    device = torch.accelerator.current_accelerator(check_available=True)
    if device and device.type in numbers:
        torch.get_device_module(device).set_rng_state(numbers[device.type])


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
