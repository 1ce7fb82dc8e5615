"""How FSDP2 divides the model."""

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Trainer


def describe_wrapping(trainer: Trainer) -> dict:
    """How the model is wrapped, how its weights are divided, on what device, and among how many processes."""
    model, weights = trainer.model, list(trainer.model.parameters())
    sharded = [p for p in weights if isinstance(p, DTensor)]
    return {
        "wrapper": "FSDPModule" if isinstance(model, FSDPModule) else type(trainer.model_wrapped).__name__,
        "sharded": "all" if len(sharded) == len(weights) else f"{len(sharded)} of {len(weights)}",
        "mesh": sorted({str(tuple(p.device_mesh.shape)) for p in sharded}),
        "placements": sorted({str(p.placements) for p in sharded}),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": " and ".join(sorted({p.device.type for p in weights})),
    }
