"""What this process holds of the model: weights, gradients, optimizer states; of what is sharded, its shards alone."""

from collections.abc import Iterable, Iterator

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import Trainer


def list_model_states(trainer: Trainer) -> dict[str, list[torch.Tensor]]:
    """Plain tensors by kind."""
    weights = list(trainer.model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    return {
        "trained": list(unwrap_tensors(trained)),
        "frozen": list(unwrap_tensors(weight for weight in weights if not weight.requires_grad)),
        "gradients": list(unwrap_tensors(weight.grad for weight in trained if weight.grad is not None)),
        "states": [part for part in unwrap_tensors(filter(torch.is_tensor, states)) if part.numel() > 1],
    }


def unwrap_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The shard of a DTensor; codes and scales of a quantized state."""
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            yield tensor.to_local()
        elif is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            yield from unwrap_tensors(getattr(tensor, name) for name in names)
        else:
            yield tensor
