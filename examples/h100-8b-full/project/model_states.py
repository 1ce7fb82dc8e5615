"""What this process holds of the model under DeepSpeed: its part of what is divided, and the float32 masters."""

import torch
from deepspeed import DeepSpeedEngine
from transformers import Trainer


def list_model_states(trainer: Trainer) -> dict[str, list[torch.Tensor]]:
    """Tensors by kind. Gradients are gone once the engine has stepped: an empty one has the dtype of their sums."""
    engine = trainer.model_wrapped
    weights = list(engine.module.parameters())
    divided = engine.zero_optimization_partition_weights()
    return {
        "trained": [weight.ds_tensor if divided else weight for weight in weights if weight.requires_grad],
        "frozen": [weight.ds_tensor if divided else weight for weight in weights if not weight.requires_grad],
        "gradients": [torch.empty(0, dtype=engine.get_data_types()[1])],
        "states": list_states(engine),
    }


def list_states(engine: DeepSpeedEngine) -> list[torch.Tensor]:
    """The masters, and what the optimizer beneath keeps of them."""
    zero = engine.optimizer
    divided = engine.zero_optimization_partition_weights()
    masters = zero.fp32_partitioned_groups_flat if divided else zero.single_partition_of_fp32_groups
    states = [value for state in zero.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return [*masters, *(state for state in states if state.numel() > 1)]
