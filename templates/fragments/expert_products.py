"""Products of routed experts in the dtype of autocast."""

import torch
from transformers.integrations import moe

multiply_groups = moe._grouped_mm


def cast_experts() -> None:
    """PyTorch's autocast casts what linear layers multiply, and not what `grouped_mm` does.

    Float32 weights would be multiplied in float32, which on CUDA has no grouped kernel: one product for each expert,
    and each time the host waits for the device (https://github.com/pytorch/pytorch/issues/174763).
    """
    moe._grouped_mm = multiply_under_autocast


def multiply_under_autocast(inputs: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """A copy of the weight lives until the backward pass, as that of a linear layer does; its gradient is float32."""
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        inputs, weight = inputs.to(dtype), weight.to(dtype)
    return multiply_groups(inputs, weight, offs)
