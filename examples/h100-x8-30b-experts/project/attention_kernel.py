"""Which kernel would PyTorch take for a call of its attention? NVIDIA's GPUs can be asked before it is made."""

import torch
from torch.nn.attention.bias import CausalBias


def explain_refusal(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa) -> str | None:
    """What no kernel takes that never holds the scores; None where one does."""
    if not query.is_cuda:
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    cast = [tensor.detach().to(dtype) for tensor in (query, key, value)]  # as autocast will
    triangle = isinstance(attn_mask, CausalBias)  # it takes flash or none, without a tensor
    mask = None if triangle else attn_mask
    call = torch.backends.cuda.SDPAParams(*cast, mask, dropout_p, is_causal, enable_gqa)
    if torch.backends.cuda.can_use_flash_attention(call):
        return None
    if not triangle and torch.backends.cuda.can_use_cudnn_attention(call):
        return None
    return f"{dtype} of {tuple(query.shape)}"
