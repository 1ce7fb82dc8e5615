"""How DistributedDataParallel wraps the model."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer


def describe_wrapping(trainer: Trainer) -> dict:
    """How the model is wrapped, on what device, and among how many processes."""
    model = trainer.model_wrapped
    # torch.compile may be around it
    wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    return {
        "wrapper": "DistributedDataParallel" if wrapped else type(model).__name__,
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": " and ".join(sorted({p.device.type for p in model.parameters()})),
    }
