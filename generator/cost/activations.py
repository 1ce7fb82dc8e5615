"""What one transformer block keeps for its backward pass, and the most it holds while that pass runs.

Bytes per token, following the autograd graph of the Transformers implementation: which operator saves which of its
inputs. Checked in tests against a trace of real training steps, storage by storage.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from generator.cost.adapters import count_magnitude_bytes
from generator.cost.execution import BYTES, Execution
from generator.cost.mixers import count_kept, find_gradient_share
from generator.cost.shape import ATTENTION_INPUT, LATENT, Shape, select_adapted
from generator.model import Mixer


class BlockActivations(NamedTuple):
    """Bytes per token and block; those of ``scores`` grow with tokens x sequence (eager attention).

    ``kept`` is the block's input, what checkpointing keeps. ``saved`` is everything kept without checkpointing, input
    included. ``peak`` is the most that is live in the block's backward pass beyond its input, gradient of the output included.
    """

    kept: float
    saved: float
    saved_scores: float
    peak: float
    peak_scores: float
    residual_bytes: float
    compute_bytes: float
    tile: float = 0.0
    """bytes per token of one tile, beside ``peak``"""


READ = (
    *("weights_dtype", "autocast_dtype", "train", "quant", "strategy", "seq_len", "threads", "expert_loop"),
    *("fused_kernels", "lora_rank", "lora_targets", "lora_upcast", "lora_dropout", "attention", "flash_kernels"),
    *("efficient_kernels", "repeats_keys", "packed_keeps", "adapter", "lora_casts", "tile_tokens"),
)
TRACED = Execution(micro_batch=1, seq_len=256, weights_dtype="bfloat16", attention="sdpa")
"""the step in which ``Shape.saved`` was traced"""
READ_FIELDS = attrgetter(*READ)
"""all that a block's activations depend on: a search asks for many executions that differ elsewhere"""


def find_element_bytes(shape: Shape, run: Execution) -> tuple[float, float]:
    """Bytes of an element of the residual stream, and of what the products read and write."""
    stored, compute = BYTES[run.weights_dtype], BYTES[run.compute_dtype]
    if run.lora_upcast and run.quant != "none" and not run.sharding.by_fsdp:
        stored = 4.0  # the embedding is upcast, and with it the stream that starts there
    if run.sharding.casts_itself and run.autocast_dtype:
        stored = compute  # FSDP casts parameters and inputs of every block; DeepSpeed keeps 16-bit weights
    if runs_float_layer_norm(shape, run) and (shape.encoder or run.quant in ("nf4", "int8")):
        # autocast's LayerNorm returns float32: an encoder's embeddings have one, bitsandbytes keeps its dtype
        stored = 4.0
    return max(stored, compute) if run.autocast_dtype else stored, compute


def runs_float_layer_norm(shape: Shape, run: Execution) -> bool:
    """CUDA's autocast runs layer_norm in float32, on a copy of its input (torch docs, amp); the CPU's does not."""
    fused = run.fused_kernels == "pretraining"
    return bool(run.autocast_dtype) and not shape.rms_norm and not fused and run.threads is None


def compute_block_activations(shape: Shape, run: Execution) -> BlockActivations:
    """By formula, or as often what the formula says as was traced where the formula does not know the architecture."""
    block = compute_formula_activations(shape, run)
    if not shape.saved:
        return block
    elements, others, elements_of_pair, others_of_pair = shape.saved
    reference = compute_formula_activations(shape, TRACED)
    more = block.saved * ((2 * elements + others) / reference.saved - 1)
    scores = max(0.0, 2 * elements_of_pair + others_of_pair - reference.saved_scores)
    return block._replace(
        saved=block.saved + more,
        saved_scores=block.saved_scores + scores,
        peak=max(block.peak + more, block.kept),
        peak_scores=block.peak_scores + scores,
    )


def compute_formula_activations(shape: Shape, run: Execution) -> BlockActivations:
    """Those of a plain transformer with the traits of ``shape``."""
    residual, compute = find_element_bytes(shape, run)
    full = run.train == "full"
    wide = find_output_bytes(run, residual, compute)
    beside = count_bytes_beside_feed_forward(shape, run, residual, compute)
    normed = 4.0 if runs_float_layer_norm(shape, run) else residual
    feed_forward = count_feed_forward_bytes(shape, run, normed, wide, full)
    kept = gradient = residual * shape.hidden
    casts = (shape.rms_norm and run.fused_kernels == "none") or runs_float_layer_norm(shape, run)
    keeps_input = residual == 4 or not casts  # else a float32 copy is kept instead
    scores = count_score_bytes(shape, compute, run)
    mask = compute_masked_share(shape, run) * compute
    scores_backward = count_score_gradient_bytes(shape, compute, run) if scores else 0.0
    attending = shape.attending or 1.0
    if run.tile_tokens:
        return compute_tiled_activations(shape, run, residual, compute)
    # the backward pass of a block starts with its feed-forward, whose tensors are gone when it comes to the attention
    feed_forward_gradients = count_feed_forward_gradient_bytes(shape, run, wide, full)
    largest = beside.largest
    in_feed_forward = largest + feed_forward + kept + feed_forward_gradients + gradient
    in_attention = largest + max(count_attention_gradient_bytes(shape, compute, run), beside.gradients) + 2 * gradient
    return BlockActivations(
        kept=kept,
        saved=(kept if keeps_input else 0.0) + beside.mean + feed_forward,
        saved_scores=attending * scores + mask,
        peak=max(in_feed_forward, in_attention),
        peak_scores=scores + scores_backward + mask,
        residual_bytes=residual,
        compute_bytes=compute,
    )


def compute_tiled_activations(shape: Shape, run: Execution, residual: float, compute: float) -> BlockActivations:
    """A recomputed block whose norms and feed-forward keep their inputs alone, and their insides for one tile.

    Held while the feed-forward is differentiated: what the products before attention read, attention's own tensors, the sum after
    it and its norm, and two gradients. While attention is, the gradients of its tensors are there in place of the last two.
    """
    hidden = residual * shape.hidden
    full = run.train == "full"
    casts = 3.0 if full and residual != compute and not shape.fused_qkv else 1.0
    read = casts * compute * shape.hidden if residual != compute else hidden
    own = 0.0  # what adapters that share no input keep, of a tile
    if run.train == "lora" and not shares_adapter_inputs(run, compute, compute):
        read = count_input_bytes(shape, run, compute, compute, full, ATTENTION_INPUT, shape.hidden)
        read += count_input_bytes(shape, run, compute, compute, full, ("o",), shape.query)
        own = count_input_bytes(shape, run, compute, compute, full, ("gate", "up"), shape.hidden)
        own += count_input_bytes(shape, run, compute, compute, full, ("down",), int(shape.ffn_active))
    attention = read + count_attention_bytes(shape, compute, run)
    if shape.qk_norm:  # the inputs of their tiles
        attention += compute * (shape.query + shape.key)
    in_feed_forward = attention + 4 * hidden
    in_attention = attention + count_attention_gradient_bytes(shape, compute, run) + 2 * hidden
    scores, mask = count_score_bytes(shape, compute, run), compute_masked_share(shape, run) * compute
    scores_backward = count_score_gradient_bytes(shape, compute, run) if scores else 0.0
    widths = (4.0 if shape.gated else 2.0) + 2.0  # what is kept of the feed-forward, and two gradients
    return BlockActivations(
        kept=hidden,
        saved=hidden + in_feed_forward,
        saved_scores=scores + mask,
        peak=max(in_feed_forward, in_attention),
        peak_scores=scores + scores_backward + mask,
        residual_bytes=residual,
        compute_bytes=compute,
        tile=widths * find_output_bytes(run, residual, compute) * shape.ffn_active + own,
    )


def find_output_bytes(run: Execution, residual: float, compute: float) -> float:
    """Bytes of an element of what the feed-forward's products return."""
    return residual if run.quant in ("nf4", "int8") else compute  # bitsandbytes: the dtype of its input


class Beside(NamedTuple):
    """Bytes per token of a block without its feed-forward: in the mean, of the block with the most, and what gradients of that one's mixer
    take while it is differentiated."""

    mean: float
    largest: float
    gradients: float


def count_bytes_beside_feed_forward(shape: Shape, run: Execution, residual: float, compute: float) -> Beside:
    """What norms, attention or what stands in its place, and dropout keep."""
    full = run.train == "full"
    norms = count_norm_bytes(shape, run, residual, full, first=True)
    if not shape.one_norm:
        norms += count_norm_bytes(shape, run, residual, full, first=False)
    norms += count_post_norm_bytes(shape, compute, full)
    if shape.dropout:  # CUDA keeps a mask, the CPU the noise
        norms += float(shape.dropout) * shape.hidden * (1.0 if run.threads is None else compute)
    attention = count_attending_bytes(shape, run, residual, compute) if shape.attending else 0.0
    if not shape.mixers:
        return Beside(norms + shape.attending * attention, norms + attention, 0.0)
    each = [(m.layers / shape.layers, count_mixer_bytes(shape, run, residual, compute, m)) for m in shape.mixers]
    mean = norms + shape.attending * attention + sum(share * size for share, size in each)
    sizes = [size for _, size in each]
    together = attention + sum(sizes) if mixes_side_by_side(shape) else max(attention, *sizes)
    gradients = max(size * find_gradient_share(m) for m, (_, size) in zip(shape.mixers, each, strict=True))
    return Beside(mean, norms + together, gradients)


def mixes_side_by_side(shape: Shape) -> bool:
    """Whether a block has attention and another mixer too (Falcon-H1)."""
    return shape.attending + sum(mixer.layers for mixer in shape.mixers) / shape.layers > 1.0


def count_attending_bytes(shape: Shape, run: Execution, residual: float, compute: float) -> float:
    """What attention keeps, with the inputs of its projections and the norms of queries and keys."""
    full = run.train == "full"
    attention = count_attention_bytes(shape, compute, run)
    if shape.gated_attention:  # what the queries' projection has made beside them, its sigmoid, and the product
        attention += 3.0 * compute * shape.query
    if shape.qk_norm:
        attention += count_normed_bytes(shape, compute, full) * (shape.query + shape.key)
    if run.packed_keeps == "inputs":  # of queries, keys and values; that of the output is kept by attention
        attention += compute * shape.hidden
    return attention + count_projected_inputs(shape, run, residual, compute)


def count_projected_inputs(shape: Shape, run: Execution, residual: float, compute: float) -> float:
    """Copies of what the projections before and after attention read."""
    full = run.train == "full"
    normed = 4.0 if runs_float_layer_norm(shape, run) else residual
    inputs = count_input_bytes(shape, run, normed, compute, full, ATTENTION_INPUT, shape.hidden)
    if shape.shared_norm and full and residual == compute:
        inputs = 0.0  # the feed-forward keeps the same tensor
    if shape.shared_norm and inputs and shares_adapter_inputs(run, normed, compute):
        inputs -= compute * shape.hidden
    outputs = count_input_bytes(shape, run, compute, compute, full, ("o",), shape.query)
    if full:
        outputs = 0.0  # the attention output is already kept by attention itself
    elif shares_adapter_inputs(run, compute, compute) or (run.fused_kernels == "foak" and run.quant != "none"):
        outputs -= compute * shape.query if outputs else 0.0  # fused adapters share the attention output
    return inputs + outputs


def count_mixer_bytes(shape: Shape, run: Execution, residual: float, compute: float, mixer: Mixer) -> float:
    """What stands in the place of attention keeps, with the inputs of its projections."""
    kept = count_kept(mixer, run)
    own = kept.elements * compute + kept.others
    if mixer.kind == LATENT:
        own += count_projected_inputs(shape, run, residual, compute)
        return own + (4.0 * mixer.rank if run.train == "lora" and run.lora_targets == "all-linear" else 0.0)
    adapted = run.train == "lora" and run.lora_targets == "all-linear"
    each = 4.0 if adapted and not shares_adapter_inputs(run, residual, compute) else compute
    return own + each * (shape.hidden + mixer.width)


def count_norm_bytes(shape: Shape, run: Execution, residual: float, full: bool, *, first: bool) -> float:
    """The first norm's input is the block's input, counted as ``kept``; the second's is kept by whoever saves it."""
    h = shape.hidden
    own_input = 0.0 if first or shape.parallel else residual * h
    if run.fused_kernels == "pretraining":
        return own_input
    if runs_float_layer_norm(shape, run) and residual < 4:
        return 0.0 if shape.shared_norm and not first else 4.0 * h
    if run.fused_kernels != "none" or not shape.rms_norm:
        return own_input
    upcast = own_input if residual == 4 else 4.0 * h  # x.to(float32) copies only what is not float32 yet
    weighted = 4.0 if shape.float32_norm_weight else residual
    return upcast + (weighted * h if full else 0.0)  # a trained weight keeps the normalized input


def count_post_norm_bytes(shape: Shape, compute: float, full: bool) -> float:
    """Norms after attention and feed-forward."""
    return shape.post_norms * count_normed_bytes(shape, compute, full) * shape.hidden


def count_normed_bytes(shape: Shape, compute: float, full: bool) -> float:
    """Of an element that a norm of its own reads: float32 input, and what the weight keeps."""
    weighted = 4.0 if shape.float32_norm_weight else compute
    return 4.0 + (weighted if full else 0.0)


def count_input_bytes(
    shape: Shape, run: Execution, source: float, compute: float, full: bool, roles: tuple[str, ...], width: int
) -> float:
    """Copies of an input that the linears of ``roles`` keep for their weight gradients."""
    present = [x for x in shape.linears if x.role in roles and x.count == 1]
    if full:
        fused = shape.fused_qkv if roles == ATTENTION_INPUT else shape.fused_gate
        copies = len(present) if source != compute and not fused else 1  # autocast casts for each product anew
        return (copies if present else 0) * compute * width
    if run.train != "lora":
        return 0.0
    if shape.fused_qkv and roles == ATTENTION_INPUT:
        roles = ("q",)
    if shape.fused_gate and roles == ("gate", "up"):
        roles = ("up",)
    adapted = [x for x in select_adapted(shape, run.lora_targets) if x.role in roles]
    adapter = compute if run.autocast_dtype else 4.0  # PEFT keeps adapters in float32
    mask = 1.0 if run.lora_dropout else 0.0
    copies = min(1, len(adapted)) if shares_adapter_inputs(run, source, compute) else len(adapted)
    each = len(adapted) * adapter * run.lora_rank + count_magnitude_bytes(run, compute, adapted)
    return copies * (adapter + mask) * width + each


def shares_adapter_inputs(run: Execution, source: float, compute: float) -> bool:
    """Whether adapters of one input keep that, and no copies: nothing casts it, and no dropout makes it another."""
    if run.train != "lora" or run.lora_dropout:
        return False
    if run.autocast_dtype is None:
        return source == 4.0
    return not run.lora_casts and source == compute


def select_attention_kernel(shape: Shape, run: Execution) -> str:
    """The attention kernel: eager, or what ``scaled_dot_product_attention`` takes for full, causal attention: flash, efficient
    (no copy of the scores), or math, which materializes them.

    On CUDA flash needs 16 bits and Ampere, and the memory-efficient kernel no grouped keys (torch's sdp_utils.cpp;
    https://github.com/huggingface/transformers/issues/48633); on a CPU the fused kernel knows no dropout.
    """
    if run.attention == "eager" or shape.eager_only:
        return "eager"
    if run.attention == "flash":
        return "flash"
    if run.threads is not None:
        return "math" if shape.attention_dropout else "flash"
    if BYTES[run.compute_dtype] < 4 and run.flash_kernels:
        return "flash"
    grouped = shape.kv_heads < shape.heads and not run.repeats_keys
    return "math" if grouped or not run.efficient_kernels else "efficient"


def compute_masked_share(shape: Shape, run: Execution) -> float:
    """Share of the blocks that get a mask as a tensor: a window that the sequence reaches, under sdpa (transformers masking_utils)."""
    if run.attention != "sdpa" or shape.eager_only:
        return 0.0
    return sum(x.layers for x in shape.attended if x.window and x.window <= run.seq_len) / shape.layers


def count_attention_bytes(shape: Shape, compute: float, run: Execution) -> float:
    """q, k, v as the kernel sees them, its output, and the row statistics (float32)."""
    keys, chosen = shape.key, select_attention_kernel(shape, run)
    if run.repeats_keys or chosen in ("eager", "math"):
        keys = shape.query
    else:  # keys are repeated for a kernel that takes a mask
        keys += compute_masked_share(shape, run) * (shape.query - shape.key)
    copies = 0.0
    if shape.partial_rotary:
        copies = shape.query if run.train == "full" and chosen == "flash" else 0.0  # its output is laid out anew
    if shape.fused_qkv and (shape.partial_rotary or shape.rotary):
        copies += shape.query + shape.key  # beside the projection that holds v
    size = 4.0 if chosen == "math" else compute  # computes in float32
    statistics = 0.0 if chosen in ("eager", "math") else 4.0 * shape.heads
    return size * (shape.query + 2 * keys) + compute * (shape.query + copies) + statistics


def count_score_bytes(shape: Shape, compute: float, run: Execution) -> float:
    """Bytes per token and key position: eager attention keeps the float32 softmax and its cast, the math kernel the softmax, and
    on a CPU the dropout's noise and its product."""
    chosen = select_attention_kernel(shape, run)
    if chosen == "math":
        unmasked = 1.0 - compute_masked_share(shape, run)
        return unmasked * shape.heads * 4.0 * (3 if run.threads is not None else 1)
    if chosen != "eager":
        return 0.0
    capped = compute if shape.eager_only else 0.0
    return shape.heads * (4.0 + capped + (compute if compute < 4 else 0.0))


def count_score_gradient_bytes(shape: Shape, compute: float, run: Execution) -> float:
    """Gradients of the scores that are alive together."""
    if select_attention_kernel(shape, run) == "math":
        return (1.0 - compute_masked_share(shape, run)) * shape.heads * 8.0
    return shape.heads * (compute + 8.0)


def count_attention_gradient_bytes(shape: Shape, compute: float, run: Execution) -> float:
    """Gradients of q, k, v and of the output; FlashAttention sums dq in float32."""
    sums = 4.0 * shape.query if select_attention_kernel(shape, run) == "flash" and compute < 4 else 0.0
    return compute * (2 * shape.query + 2 * shape.key) + sums


def count_feed_forward_bytes(shape: Shape, run: Execution, residual: float, compute: float, full: bool) -> float:
    """Dense or routed feed-forward: pre-activations, activation, product; and the input copies of its linears."""
    width = compute * shape.ffn_active
    fused = run.fused_kernels == "liger"
    if shape.gated:
        kept = (2.0 if fused else 3.0) * width
        kept += width if full else 0.0
    else:
        kept = (2.0 if full else 1.0) * width
        kept -= width if shape.relu and full else 0.0
        kept += 3.0 * width if shape.composite_gelu else 0.0
    kept += count_input_bytes(shape, run, residual, compute, full, ("gate", "up"), shape.hidden)
    if not full:
        kept += count_input_bytes(shape, run, compute, compute, full, ("down",), int(shape.ffn_active))
    if run.packed_keeps == "inputs":
        kept += width + (0.0 if shape.shared_norm else compute * shape.hidden)
    if shape.experts:
        adapted = shape.adapted_experts and run.lora_targets == "all-linear"
        if run.train == "lora" and adapted and not run.expert_loop:
            kept += width  # adapted experts keep the product too
        # what goes to an expert, times the router's weight; Llama 4 multiplies before, in the dtype of the residual stream
        sent = (residual if shape.every_expert else compute) + compute
        kept += shape.moe_layers / shape.layers * (shape.experts_per_token * sent + compute) * shape.hidden
    return kept


def count_feed_forward_gradient_bytes(shape: Shape, run: Execution, compute: float, full: bool) -> float:
    """Gradients alive when the product of gate and up is differentiated; the product itself is free by then."""
    width = compute * shape.ffn_active
    if run.expert_loop and shape.experts:
        width *= 1 - shape.moe_layers / shape.layers * (1 - 1 / shape.experts)
    gradients = (3.0 if run.fused_kernels != "liger" else 1.0) if shape.gated else 2.0  # Liger writes over its inputs
    returns_float = run.train == "lora" and not shares_adapter_inputs(
        run, BYTES[run.compute_dtype], BYTES[run.compute_dtype]
    )
    if returns_float and any(x.role == "down" for x in select_adapted(shape, run.lora_targets)):
        gradients = max(gradients, 2.0 + 4.0 / compute)  # the adapter's input gradient comes back through float32
    return gradients * width - (width if full else 0.0)
