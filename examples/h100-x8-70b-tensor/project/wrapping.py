"""How division.py divides the model."""

import torch.distributed as dist


def describe_wrapping(trainer) -> dict:
    """Over which axes the model is divided, on what device, and among how many processes."""
    return {
        "wrapper": type(trainer).__name__.lower(),
        "divided": trainer.division.describe(trainer.model),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": " and ".join(sorted({p.device.type for p in trainer.model.parameters()})),
    }
