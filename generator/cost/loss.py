"""Memory of the output layer and the loss: the logits and their copies, bytes a token of the vocabulary's width."""

from __future__ import annotations

from generator.cost.activations import float_layer_norm
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape

CHUNK_TOKENS = 1024
"""rows of logits that the emitted chunk_loss makes at a time (templates/fragments/chunked_loss.py)"""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""rows and columns of logits that TRL's fused output layer makes at a time (trl 1.16, kernels/chunked_logprob.py)"""
TORCH_TILE_COPIES = 4.0
"""float32 copies of a tile where Triton does not fold it (traced)"""
FLOAT = 4.0


def loss_bytes(
    shape: Shape, run: Execution, tokens: float, residual: float, compute: float, *, backward: bool = True
) -> float:
    """Bytes at the fuller of two moments: the gradient of the softmax, or the end of the forward pass (not ``backward``).

    Forward: the output layer's logits, their float32 copy, the log-softmax. Backward: log-softmax, its gradient and the
    gradient of the logits, all float32. The final norm's input and output are alive in both.
    """
    h = shape.hidden
    upcast = FLOAT * h if shape.rms_norm and run.fused_kernels == "none" and residual < 4 else residual * h
    trained = residual * h if run.train == "full" and run.fused_kernels == "none" and shape.rms_norm else 0.0
    final = (upcast + residual * h + trained) * tokens
    if float_layer_norm(shape, run):
        final = (residual + FLOAT + FLOAT + compute) * h * tokens
    width = float(shape.head_outputs)
    if shape.head_outputs < 1024:  # a classifier: one row of logits a sequence, and the last block as it runs
        return (
            final if backward else final + tokens * compute * ((4.0 if shape.gated else 2.0) * shape.ffn_active + 2 * h)
        )
    if run.loss_kernel != "plain":
        return final + _in_parts(shape, run, tokens, residual, compute)
    capped = compute if shape.capped_logits else 0.0  # tanh keeps its output
    copies = _logits(run, compute)
    if not backward and run.loss_copies == "padded":
        copies += (compute if compute < FLOAT else 0.0) - FLOAT  # the gradient is not there yet, the 16-bit logits are
    return final + tokens * width * (copies + capped)


def _in_parts(shape: Shape, run: Execution, tokens: float, residual: float, compute: float) -> float:
    """A loss that never holds all logits, with the output layer's gradient, which it makes at once.

    chunked (the emitted chunk_loss): a chunk's softmax and gradients, beside the gradient that the chunks before it left; or
    that gradient and the chunk's own. tiled (TRL's SFTTrainer): float32 gradients of hidden states and weights, then their
    copies in their own dtype. fused (Liger): gradients of the hidden states and weights, made in the forward pass.
    """
    h, width = shape.hidden, float(shape.head_outputs)
    stored = BYTES[run.weights_dtype]
    gradient = shape.head_params * stored if run.train == "full" else 0.0
    if run.loss_kernel == "chunked":
        chunk = min(tokens, CHUNK_TOKENS) * width
        before = gradient if run.accumulation == 1 else 0.0  # else it is counted among the gradients of the step
        added = gradient + before + (0.0 if run.autocast_dtype else (compute + FLOAT) * chunk) if gradient else 0.0
        return max(3 * FLOAT * chunk + before, added)
    if run.loss_kernel == "tiled":
        tile = min(tokens, TILE_TOKENS) * min(width, TILE_VOCABULARY) * compute
        weights = gradient * (FLOAT / stored + (1.0 if stored < FLOAT else 0.0))
        if stored > compute:
            weights += min(width, TILE_VOCABULARY) * h * compute
        if run.threads is not None:  # where there is no Triton, the tile's softmax is made by float32 operators
            tile *= 1.0 + TORCH_TILE_COPIES * FLOAT / compute
        return tile + weights + tokens * h * (2 * residual + FLOAT)
    chunks = max(1.0, -(-width // max(h, 1)))  # Liger keeps a chunk's logits about as large as the hidden states
    return max(1.0, tokens / chunks) * width * (compute + FLOAT) + compute * h * tokens + gradient


def _logits(run: Execution, compute: float) -> float:
    """Bytes a logit of the plain loss, all copies alive at once."""
    low = compute if compute < FLOAT else 0.0
    if run.fused_kernels == "pretraining":
        return 2 * compute  # logits, over which the gradient is written, and one copy
    copies = 2 if run.fused_kernels.startswith("foak") else 3  # its cross-entropy writes the gradient in place
    if run.loss_copies == "native":
        kept = (
            FLOAT if run.autocast_dtype and run.quant != "none" else compute
        )  # measured (fms-acceleration, GPT-BigCode)
        return kept + copies * (FLOAT if run.autocast_dtype else compute)
    if run.loss_copies == "shifted-kept":
        return low + copies * FLOAT
    return copies * FLOAT
