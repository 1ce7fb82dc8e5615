"""Device memory of a training step: the largest of the moments at which it can peak, item by item.

Moments: the loss (all kept activations and the logits), the backward pass of the last block, that of the first block (all
gradients, no activations), that of the embedding, and the optimizer step. Their items are never alive together, so the peak is their maximum.
What does not depend on the batch is in ``static_memory.py``, what sharding does to it in ``sharding.py``, activations of one
block in ``activations.py``.
"""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.activations import BlockActivations, select_attention_kernel
from generator.cost.execution import BYTES, Execution
from generator.cost.lengths import count_held_tokens
from generator.cost.loss import compute_loss_bytes
from generator.cost.shape import Shape
from generator.cost.sharding import divides_attention, keeps_checkpointed_inputs
from generator.cost.stages import compute_most_layers_share, count_kept_layers, count_under_way
from generator.cost.static_memory import StaticMemory, ties_head
from generator.cost.weights import PLAIN, count_packed_params, name_stored_source

AUTOGRAD = "saved tensors of the Transformers implementation, traced (tests/cost)"
SOURCES = {
    "weights": PLAIN,
    "gathered weights": c.FSDP_LIVE_BLOCKS.source,
    "reduce buckets": c.ZERO_BUCKET_COPIES.source,
    "summed gradients": "torch._utils._flatten_dense_tensors, of SENT_ELEMENTS and one weight more (divided_states.py)",
    "cast weights": "autocast keeps the 16-bit copy of each trained weight until the pass ends (torch docs, amp)",
    "gradients": "one gradient per trained parameter, in its dtype (torch.autograd)",
    "kept activations": AUTOGRAD,
    "loss": "logits, float32 copy, log-softmax and their gradients (transformers loss_utils.ForCausalLMLoss)",
    "block in backward": AUTOGRAD,
    "embedding's gradient": "resident memory of real steps (benchmarks/results/embedding_gradient.json)",
    "dequantized weights": "one layer's weights dequantized at a time (bitsandbytes, gptqmodel)",
    "returned cache": "use_cache, keys and values of every block in the model's output (traced, transformers 4.35.2)",
    "adapted experts": "PEFT adds the adapter to the fused experts as a whole tensor (peft ParamWrapper)",
    "gradients of DeepSpeed": "averaged_gradients, grad_partitions_flat_buffer, fp32_groups_gradients_flat (deepspeed 0.19.8)",
    "optimizer temporary": "torch.optim foreach makes one temporary the size of the parameters",
}
DDP_BUCKETS = "its reducer copies every gradient into a bucket (torch docs, DistributedDataParallel)"

Moment = dict[str, float]
"""bytes by item"""


def find_source(name: str, run: Execution) -> str:
    """Where the formula of an item, or its constant, comes from."""
    if name == "weights":
        return name_stored_source(run)
    if name == "optimizer states":
        return run.optimizer.source
    if name == "reduce buckets" and run.sharding.buckets_every_gradient:
        return DDP_BUCKETS
    if name == "gradients" and run.sharding.by_deepspeed:
        return SOURCES["gradients of DeepSpeed"]
    if name == "optimizer temporary" and not run.optimizer.stores_gradients:
        return "the embedding's gradient, which comes last (torch.autograd)"
    return SOURCES[name]


def compute_training_moments(shape: Shape, run: Execution, static: StaticMemory) -> dict[str, Moment]:
    """Bytes by item for each moment at which a training step can peak."""
    tokens = count_held_tokens(run) / (run.cp * run.tp)
    block = repeat_hidden_states(shape, run, static.block)
    recomputed, kept_whole = count_checkpointed_blocks(shape, run)
    kept = compute_kept_activations(shape, run, block, tokens, recomputed, kept_whole)
    backward = tokens * (block.peak + block.peak_scores * count_scores_in_flight(shape, run))
    backward += min(tokens, run.tile_tokens) * block.tile
    returned = (
        tokens * block.kept if run.checkpoint_offload and recomputed else 0.0
    )  # the input of the block, from the host
    last = backward
    if kept_whole and not recomputed:  # its tensors are among the kept ones: only what the backward pass adds
        last -= tokens * (block.saved + block.saved_scores * run.seq_len)
    steady = {"weights": static.weights, "optimizer states": static.states, "reduce buckets": static.reduce_buckets}
    # the sums of the micro-batches before stay through this one's forward pass
    carried = static.gradients if run.accumulation > 1 else static.lasting_gradients
    # the stage with the loss has one micro-batch under way, others have more; and of all tokens: every part has their last states
    beside_loss = kept / count_under_way(run) if run.own_loop else kept
    predicted = tokens * run.tp if run.own_loop else tokens
    loss = compute_loss_bytes(shape, run, predicted, block.residual_bytes, block.compute_bytes)
    casts = compute_kept_casts(shape, run, static, kept_whole)
    saved_head = static.cast_head if run.loss_kernel == "plain" else 0.0  # other losses cast it again as they need it
    moments = {
        "loss": {
            **steady,
            # no block is in use between the passes
            "gathered weights": static.gathered_ends,
            "cast weights": casts + saved_head,
            "gradients": carried,
            "kept activations": beside_loss,
            "adapted experts": static.adapted_experts * kept_whole,
            "returned cache": tokens * kept_whole / run.pp * compute_returned_cache(shape, run),
            "loss": loss,
        },
        "last block": {
            **steady,
            "gathered weights": static.gathered_ends + c.FSDP_LIVE_BLOCKS * static.gathered_block,
            "cast weights": max(casts, static.cast_block),
            # the output layer's comes first, before any block's
            "gradients": max(carried, static.head_gradient),
            "kept activations": kept + returned,
            "block in backward": max(last, 0.0),
            "dequantized weights": static.dequantized,
            # those of the blocks that keep everything, and of the one that is computed again
            "adapted experts": static.adapted_experts * (kept_whole + (1.0 if recomputed else 0.0)),
        },
        "first block": {
            **steady,
            # there is no block after it to prefetch
            "gathered weights": static.gathered_ends + static.gathered_block,
            "cast weights": casts if run.shares_casts else static.cast_block,
            # the embedding's comes last, when nothing of the blocks is left
            "gradients": max(carried, count_waiting_gradients(run, static)),
            "kept activations": returned,
            "block in backward": backward,
            "dequantized weights": static.dequantized,
            "adapted experts": static.adapted_experts,
        },
        "optimizer step": compute_update_moment(run, static),
    }
    if static.summed_at_once:
        moments["gradients summed"] = {
            "weights": static.weights,
            "optimizer states": static.states,
            "gradients": static.gradients,
            "summed gradients": static.summed_at_once,
        }
    if static.cast_weights:  # all of them are alive when the forward pass ends
        forward = compute_loss_bytes(shape, run, predicted, block.residual_bytes, block.compute_bytes, backward=False)
        moments["forward"] = {**moments["loss"], "cast weights": static.cast_weights, "loss": forward}
    if copies := count_embedding_copies(shape, run):
        moments["embedding"] = {
            **steady,
            "gathered weights": static.gathered_ends,
            "gradients": static.gradients,
            "embedding's gradient": copies * static.embedding_copy,
        }
    if keeps_checkpointed_inputs(run):  # each with its gradient; that of the first block is in the block itself
        moments["first block"]["kept activations"] = tokens * 2 * (recomputed - 1) * block.kept
    return moments


def compute_kept_casts(shape: Shape, run: Execution, static: StaticMemory, kept_whole: float) -> float:
    """Bytes of the 16-bit copies that the backward pass reads of blocks that keep everything. Of experts each micro-batch that a
    stage has under way has its own."""
    if not run.shares_casts:
        return static.cast_block * kept_whole
    layers = shape.layers / run.pp * compute_most_layers_share(shape, run)
    linear = static.cast_block - static.cast_experts
    return linear * layers + static.cast_experts * count_kept_layers(shape, run)


def count_waiting_gradients(run: Execution, static: StaticMemory) -> float:
    """Bytes of those that are there when the first block's come. An update in the backward pass drops all but a tied head's, whose
    other part is the embedding's."""
    if run.optimizer.stores_gradients:
        return static.gradients - static.embedding_gradient
    return static.head_gradient


def count_embedding_copies(shape: Shape, run: Execution) -> int:
    """Gradients as large as the embedding's that are alive beside all gradients when the backward pass ends.

    The new one before it is added to the sum of the micro-batches before; where the output layer is tied to it, that layer's, which
    has waited for it, too, and their sum where that cannot be written over it: a gradient that one product alone has made,
    uncast (resident memory of real steps: benchmarks/embedding_gradient.py). DeepSpeed and FSDP take them out of
    autograd's hands as they come.
    """
    whole = not (run.sharding.by_deepspeed or run.sharding.divides_weights)
    if run.train != "full" or not whole or not run.optimizer.stores_gradients:
        return 0
    added = int(run.accumulation > 1)
    if not ties_head(shape):
        return added
    return added + 1 + int(run.loss_kernel == "plain" and run.autocast_dtype is None)


def count_checkpointed_blocks(shape: Shape, run: Execution) -> tuple[float, float]:
    """Blocks that are recomputed, and blocks that keep everything."""
    if not run.checkpoint_every:
        return 0.0, float(shape.layers)
    recomputed = -(-shape.layers // run.checkpoint_every)
    return float(recomputed), float(shape.layers - recomputed)


def compute_returned_cache(shape: Shape, run: Execution) -> float:
    """Per token and block: keys and values that live as long as the model's output does. Kernels keep the same ones for the backward
    pass; matrix products of eager attention keep contiguous copies of them (traced: Transformers 4.35.2)."""
    copied = run.returns_cache and select_attention_kernel(shape, run) == "eager"
    return 2 * shape.key * BYTES[run.compute_dtype] if copied else 0.0


def count_scores_in_flight(shape: Shape, run: Execution) -> int:
    """Key positions of the scores that a block's backward pass holds for a query."""
    if shape.window and run.attention == "eager":
        return min(run.seq_len, shape.window)
    return run.seq_len


def repeat_hidden_states(shape: Shape, run: Execution, block: BlockActivations) -> BlockActivations:
    """Per token of a tensor part. Without sequence parallelism each part has the hidden states of all tokens; with it the inputs of
    attention and feed-forward, which Megatron-LM gathers anew for the backward pass and the loop keeps (token_parts.py)."""
    others = run.tp - 1 if run.own_loop or not run.sequence_parallel else 0
    if not others:
        return block
    if run.sequence_parallel:
        gathered = others * min(block.saved, 2 * BYTES[run.compute_dtype] * shape.hidden)
        return block._replace(saved=block.saved + gathered, peak=block.peak + gathered)
    each = c.REPEATED_BYTES * shape.hidden
    if not divides_attention(shape, run):  # queries, keys, values and what comes of them
        each += BYTES[run.compute_dtype] * 2 * (shape.query + shape.key)
    repeated = others * min(block.saved, each)
    return block._replace(kept=block.kept * run.tp, saved=block.saved + repeated, peak=block.peak + repeated)


def compute_selected_bytes(shape: Shape, run: Execution) -> float:
    """Per token and block, beside its input: what attention returns, with its row statistics, and every second product, in the
    order in which they run (torchtitan 0.2, activation_checkpoint.py)."""
    outputs = sum(x.outputs * x.share * x.count for x in shape.linears[::2])
    return BYTES[run.compute_dtype] * (outputs + shape.query) + BYTES["float32"] * shape.heads


def compute_kept_activations(
    shape: Shape, run: Execution, block: BlockActivations, tokens: float, recomputed: float, kept_whole: float
) -> float:
    """What the forward pass leaves for the backward pass, all blocks of this device."""
    in_pipeline = count_kept_layers(shape, run) / shape.layers
    scores = block.saved_scores * run.seq_len
    selected = compute_selected_bytes(shape, run) if run.checkpoint_operators else 0.0
    inputs = 0.0 if run.checkpoint_offload else block.kept  # offloaded, those of recomputed blocks go to the host
    kept = in_pipeline * tokens * (recomputed * (inputs + selected) + kept_whole * (block.saved + scores))
    if run.own_loop and run.pp > 1:  # what was sent on, and a place for the gradient that comes back
        sent = tokens * (1 if run.sequence_parallel else run.tp)
        kept += (count_under_way(run) + 1) * sent * block.residual_bytes * shape.hidden
    if run.packed_keeps == "weights":
        unpacked = count_packed_params(shape, run) * BYTES[run.compute_dtype] / run.parts
        kept += unpacked * kept_whole / shape.layers
    return kept


def compute_update_moment(run: Execution, static: StaticMemory) -> Moment:
    """Bytes by item while the optimizer updates: no batch is small enough to save them."""
    # ZeRO-1 reduces gradients to their owners and frees the others' before it updates, unless they are one buffer
    frees = run.sharding.divides_states and not run.sharding.divides_gradients and not static.lasting_gradients
    freed = run.shards if frees else 1
    return {
        "weights": static.weights,
        "optimizer states": static.states,
        "reduce buckets": static.reduce_buckets,
        "gradients": static.gradients / freed,
        "optimizer temporary": static.step_temporary,
    }


def find_peak(moments: dict[str, Moment]) -> tuple[str, Moment]:
    """The moment at which the most is alive."""
    return max(moments.items(), key=lambda item: sum(item[1].values()))
