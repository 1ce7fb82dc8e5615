"""Memory of the output layer and the loss: the logits and their copies, bytes a token of the vocabulary's width."""

from __future__ import annotations

from generator.cost.activations import float_layer_norm
from generator.cost.execution import Execution
from generator.cost.shape import Shape

CHUNK_TOKENS = 4096
"""rows of logits that a chunked or fused cross-entropy makes at a time (Liger: about tokens / ceil(vocab / hidden))"""
FLOAT = 4.0


def loss_bytes(shape: Shape, run: Execution, tokens: float, residual: float, compute: float) -> float:
    """Bytes at the fuller of two moments: the end of the forward pass, and the gradient of the softmax.

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
    if shape.head_outputs < 1024:  # a classifier: one row of logits a sequence
        return final
    if run.loss_kernel in ("fused", "chunked"):
        rows = min(tokens, chunk_tokens(shape, run, tokens))
        return final + rows * width * (compute + FLOAT) + compute * h * tokens
    return final + tokens * width * _logits(run, compute)


def chunk_tokens(shape: Shape, run: Execution, tokens: float) -> float:
    """Rows a chunk: Liger keeps a chunk's logits about as large as the hidden states."""
    if run.loss_kernel == "fused":
        chunks = max(1.0, -(-shape.head_outputs // max(shape.hidden, 1)))
        return max(1.0, tokens / chunks)
    return CHUNK_TOKENS


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
