"""Keys of grouped heads are repeated before attention, for GPUs whose PyTorch has no flash kernel.

Transformers leaves the groups to PyTorch, whose memory-efficient kernel takes none: all scores would be made
(huggingface/transformers#48633).
"""

import torch
from transformers.integrations import sdpa_attention


def repeat_keys() -> None:
    """Before the model is called; for all models of this process."""
    vars(sdpa_attention)["use_gqa_in_sdpa"] = leaves_groups


def leaves_groups(attention_mask: torch.Tensor | None, key: torch.Tensor, value: torch.Tensor) -> bool:
    """In the place of Transformers' own question, which does not look at the GPU."""
    return False
