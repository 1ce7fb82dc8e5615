"""How DeepSpeed divides the model and its optimizer states."""

import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from transformers import Trainer


def describe_wrapping(trainer: Trainer) -> dict:
    """How the model is wrapped, over how many processes its states are divided, on what device."""
    engine = trainer.model_wrapped
    processes = {
        "wrapper": type(engine).__name__,
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": trainer.args.device.type,
    }
    if not isinstance(engine, DeepSpeedEngine):
        return processes
    return processes | {"zero_stage": engine.zero_optimization_stage(), "shards": count_shards(engine)}


def count_shards(engine: DeepSpeedEngine) -> int:
    """What is divided, over what one process keeps of it: the weights, or the optimizer states of those that train."""
    weights = list(engine.module.parameters())
    if engine.zero_optimization_partition_weights():
        return round(sum(p.ds_numel for p in weights) / sum(p.ds_tensor.numel() for p in weights))
    trained = sum(p.numel() for p in weights if p.requires_grad)
    return round(trained / sum(part.numel() for part in engine.optimizer.single_partition_of_fp32_groups))
