"""Logits of the trained tokens alone, made once, by the model's own head.

TRL makes those of every token where there is no Triton, makes them again in the backward pass, and multiplies there in
float32. Here the hidden states of the others are left out before its head; the loss, its gradients and what is logged
of them are the same.
"""

from functools import wraps

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl.trainer.utils import FusedCausalLMOutput

HELD_LOGITS = 4096 * 32768
"""TRL's kernel makes as many at a time: of more trained tokens it makes the logits piece by piece."""


def score_trained_tokens(model: nn.Module) -> None:
    """``model`` is that of an SFTTrainer, with its adapters if it has any."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    forward, vocabulary = causal.forward, causal.get_output_embeddings().weight.shape[0]
    # Llama 4's prefix names what a model of text and images has it by, and base_model is the whole
    backbone = causal.model if causal.base_model is causal else causal.base_model

    @wraps(forward)  # generate reads its parameters
    def score(*args, fused_lm_head: bool = False, labels: torch.Tensor | None = None, **inputs):
        if not fused_lm_head or labels is None:
            given = {"fused_lm_head": fused_lm_head} | ({} if labels is None else {"labels": labels})
            return forward(*args, **given, **inputs)
        targets = F.pad(labels[:, 1:], (0, 1), value=-100)  # each token predicts the next
        trained = targets != -100
        targets = targets[trained][None]

        def select(module: nn.Module, args: tuple, output):
            output.last_hidden_state = output.last_hidden_state[trained][None]

        if targets.numel() * vocabulary > HELD_LOGITS:
            with backbone.register_forward_hook(select):
                return forward(*args, fused_lm_head=True, shift_labels=targets, **inputs)
        # the model's own forward need not call its backbone: OPT's and Bart's call what is inside of it
        head = causal.get_output_embeddings()
        with head.register_forward_pre_hook(lambda _, hidden: hidden[0][trained][None]):
            return score_targets(forward(*args, **inputs), targets)

    causal.forward = score


def score_targets(output: CausalLMOutputWithPast, targets: torch.Tensor) -> FusedCausalLMOutput:
    """What SFTTrainer reads of a model with TRL's head, from all logits of the ``targets`` [1, tokens]."""
    log_softmax = output.logits.float().log_softmax(dim=-1)
    log_probs = log_softmax.gather(-1, targets[..., None])[..., 0]
    with torch.no_grad():
        entropy = -log_softmax.exp().mul_(log_softmax).sum(dim=-1)
        is_top1 = log_probs == log_softmax.amax(dim=-1)
        is_top1[is_top1.clone()] = log_softmax[is_top1].argmax(dim=-1) == targets[is_top1]  # the first of equals
    return FusedCausalLMOutput(
        log_probs=log_probs,
        entropy=entropy,
        is_top1=is_top1,
        label_mask=torch.ones_like(targets, dtype=torch.bool),
        aux_loss=output.get("aux_loss"),  # of a mixture of experts
    )
