"""Logits of the trained tokens alone: TRL makes those of every token where there is no Triton.

The hidden states of the others are left out between the model's backbone and TRL's loss; its value, its gradients and
what is logged of it are the same.
"""

from functools import wraps

import torch
from torch import nn
from torch.nn import functional as F


def score_trained_tokens(model: nn.Module) -> None:
    """``model`` is that of an SFTTrainer, with its adapters if it has any."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    forward = causal.forward

    @wraps(forward)  # generate reads its parameters
    def score(*args, fused_lm_head: bool = False, labels: torch.Tensor | None = None, **inputs):
        if not fused_lm_head or labels is None:
            given = {"fused_lm_head": fused_lm_head} | ({} if labels is None else {"labels": labels})
            return forward(*args, **given, **inputs)
        targets = F.pad(labels[:, 1:], (0, 1), value=-100)  # each token predicts the next
        trained = targets != -100

        def select(module: nn.Module, args: tuple, output):
            output.last_hidden_state = output.last_hidden_state[trained][None]

        with causal.base_model.register_forward_hook(select):
            return forward(*args, fused_lm_head=True, shift_labels=targets[trained][None], **inputs)

    causal.forward = score
