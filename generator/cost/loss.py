"""Memory of the output layer and the loss: the logits and their copies, bytes per token and output."""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.activations import runs_float_layer_norm
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape

FLOAT = BYTES["float32"]
HELD_LOGITS = c.TILE_TOKENS * c.TILE_VOCABULARY
"""up to which the emitted score_trained_tokens makes all of them at once (templates/fragments/trained_tokens.py)"""


def compute_loss_bytes(
    shape: Shape, run: Execution, tokens: float, residual: float, compute: float, *, backward: bool = True
) -> float:
    """Bytes at the fuller of two moments: the gradient of the softmax, or the end of the forward pass (not ``backward``).

    Forward: the output layer's logits, their float32 copy, the log-softmax. Backward: log-softmax, its gradient and the
    gradient of the logits, all float32. The final norm's input and output are alive in both.
    """
    final = compute_final_norm_bytes(shape, run, tokens, residual, compute)
    if shape.classifies:  # the loss of one row a sequence is nothing: what counts is the last block as it runs
        widest = (4.0 if shape.gated else 2.0) * shape.ffn_active + 2 * shape.hidden
        scored = count_scored(shape, tokens) * shape.head_outputs
        return final + (scored * compute if backward else max(tokens * widest, scored) * compute)
    if run.loss_kernel != "plain":
        return final + compute_partial_loss_bytes(shape, run, tokens, residual, compute)
    capped = compute if shape.capped_logits else 0.0  # tanh keeps its output
    copies = count_logit_bytes(run, compute)
    if not backward and run.loss_copies == "padded" and not divides_logits(run):
        copies += (compute if compute < FLOAT else 0.0) - FLOAT  # the gradient is not there yet, the 16-bit logits are
    outputs = shape.head_outputs / (run.tp if divides_logits(run) else 1)
    return final + tokens * outputs * (copies + capped)


def divides_logits(run: Execution) -> bool:
    """Whether each tensor part has the logits of its own words alone, of all tokens (templates/fragments/vocabulary_parts.py)."""
    return run.own_loop and run.tp > 1


def count_scored(shape: Shape, tokens: float) -> float:
    """Tokens of which the output layer makes logits. An encoder's classifier reads one of each sequence, which is next to none; a
    decoder's makes those of all, takes the last one's, and has their gradient, mostly zeros, in the backward pass (transformers 5.23,
    modeling_layers.py, GenericForSequenceClassification)."""
    return 0.0 if shape.classifies and shape.encoder else tokens


def compute_final_norm_bytes(shape: Shape, run: Execution, tokens: float, residual: float, compute: float) -> float:
    """The last norm's input, its copies and its output.

    Of one that is not in tiles the backward pass holds more (six float32 copies), and a block's more than that.
    """
    h = shape.hidden
    if run.tile_tokens:  # copies of a tile alone, when the loss has its gradient no more
        return 2 * residual * h * tokens
    if runs_float_layer_norm(shape, run):  # input, its float32 copy, float32 output, and that cast for the product
        return (residual + FLOAT + FLOAT + compute) * h * tokens
    separate = shape.rms_norm and run.fused_kernels == "none"
    upcast = FLOAT * h if separate and residual < FLOAT else residual * h
    weighted = residual * h if separate and run.train == "full" else 0.0  # for the gradient of the norm's weight
    return (upcast + residual * h + weighted) * tokens


def compute_partial_loss_bytes(shape: Shape, run: Execution, tokens: float, residual: float, compute: float) -> float:
    """A loss that never holds all logits, with the output layer's gradient, which it makes at once."""
    gradient = shape.head_params * BYTES[run.weights_dtype] if run.train == "full" else 0.0
    if run.loss_kernel == "chunked":
        return compute_chunked_loss_bytes(shape, run, tokens, compute, gradient)
    if run.loss_kernel == "tiled":
        return compute_sft_loss_bytes(shape, run, tokens, residual, compute, gradient)
    # Liger makes gradients of the hidden states and weights in the forward pass, and keeps a chunk's logits about as large as
    # the hidden states: chunks = outputs / hidden
    width = float(shape.head_outputs)
    chunks = max(1.0, -(-width // max(shape.hidden, 1)))
    return max(1.0, tokens / chunks) * width * (compute + FLOAT) + compute * shape.hidden * tokens + gradient


def compute_chunked_loss_bytes(shape: Shape, run: Execution, tokens: float, compute: float, gradient: float) -> float:
    """The emitted chunk_loss: a chunk's softmax and gradients, beside the gradient that the chunks before it left; or that
    gradient and the chunk's own."""
    chunk = min(tokens, c.CHUNK_TOKENS) * shape.head_outputs
    before = gradient if run.accumulation == 1 else 0.0  # else it is counted among the gradients of the step
    added = gradient + before + (0.0 if run.autocast_dtype else (compute + FLOAT) * chunk) if gradient else 0.0
    return max(3 * FLOAT * chunk + before, added)


def compute_sft_loss_bytes(
    shape: Shape, run: Execution, tokens: float, residual: float, compute: float, gradient: float
) -> float:
    """Of a batch of which every token is trained, TRL's tiles, or on a CPU all logits that are made at once, as far as they go."""
    if run.threads is None:
        return compute_tiled_loss_bytes(shape, run, tokens, residual, compute, gradient)
    held = min(tokens, HELD_LOGITS / shape.head_outputs)
    scored = compute_scored_loss_bytes(shape, run, held, residual, compute, gradient)
    if held == tokens:
        return scored
    return max(scored, compute_tiled_loss_bytes(shape, run, tokens, residual, compute, gradient))


def scores_at_once(shape: Shape, run: Execution, trained: float) -> bool:
    """Whether projects make all logits of the ``trained`` tokens in place of TRL's tiles, which are made twice."""
    return run.loss_kernel == "tiled" and run.threads is not None and trained * shape.head_outputs <= HELD_LOGITS


def compute_scored_loss_bytes(
    shape: Shape, run: Execution, tokens: float, residual: float, compute: float, gradient: float
) -> float:
    """The emitted score_trained_tokens: the log-softmax, its gradient and that of the logits, all float32; or that of the logits in
    the dtype of the products, and the weights' gradient in it and in their own."""
    logits = tokens * shape.head_outputs
    stored = BYTES[run.weights_dtype]
    cast = gradient * compute / stored if compute < stored else 0.0
    return max(3 * FLOAT * logits, compute * logits + cast + gradient) + tokens * shape.hidden * (residual + compute)


def compute_tiled_loss_bytes(
    shape: Shape, run: Execution, tokens: float, residual: float, compute: float, gradient: float
) -> float:
    """TRL's SFTTrainer: float32 gradients of hidden states and weights, then their copies in their own dtype."""
    stored = BYTES[run.weights_dtype]
    columns = min(float(shape.head_outputs), c.TILE_VOCABULARY)
    tile = min(tokens, c.TILE_TOKENS) * columns * compute
    weights = gradient * (FLOAT / stored + (1.0 if stored < FLOAT else 0.0))
    if stored > compute:  # the columns' weights, cast for their product
        weights += columns * shape.hidden * compute
    if run.threads is not None:  # where there is no Triton, the tile's softmax is made by float32 operators
        tile *= 1.0 + c.TORCH_TILE_COPIES * FLOAT / compute
    return tile + weights + tokens * shape.hidden * (2 * residual + FLOAT)


def count_logit_bytes(run: Execution, compute: float) -> float:
    """Bytes per logit of the plain loss, all copies alive at once."""
    low = compute if compute < FLOAT else 0.0
    # logits, their float32 copy, and the softmax, over which the gradient is written
    if run.loss_copies == "vocab-parallel" or divides_logits(run):
        return low + 2 * FLOAT
    if run.fused_kernels == "pretraining":
        return 2 * compute  # logits, over which the gradient is written, and one copy
    copies = 2 if run.fused_kernels.startswith("foak") else 3  # its cross-entropy writes the gradient in place
    if run.loss_copies == "native":
        # measured (fms-acceleration, GPT-BigCode)
        kept = FLOAT if run.autocast_dtype and run.quant != "none" else compute
        return kept + copies * (FLOAT if run.autocast_dtype else compute)
    if run.loss_copies == "shifted-kept":
        return low + copies * FLOAT
    return copies * FLOAT
