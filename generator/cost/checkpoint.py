"""What a checkpoint of the Trainer holds, in bytes."""

from __future__ import annotations

from generator.cost.execution import Execution
from generator.cost.shape import Shape
from generator.cost.static_memory import compute_states, count_trained_params, find_parameter_bytes


def count_checkpoint_bytes(shape: Shape, run: Execution) -> float:
    """Trained weights and optimizer states of all devices together; DeepSpeed's states hold its float32 weights.

    Adapters are saved without their base (peft, save_pretrained); the small files are left out.
    """
    each, trained = find_parameter_bytes(run), count_trained_params(shape, run)
    return trained * each.trained + compute_states(shape, run, each, trained)
