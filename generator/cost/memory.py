"""Device memory of a training step: the largest of the moments at which it can peak, part by part.

Moments: the loss (all kept activations and the logits), the backward pass of the last block, that of the first block (all
gradients, no activations), and the optimizer step. Their parts are never alive together, so the peak is their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

from generator.cost import constants as c
from generator.cost.activations import BlockActivations, block_activations
from generator.cost.execution import BYTES, Execution
from generator.cost.loss import loss_bytes
from generator.cost.optimizers import OPTIMIZER_STATES, state_bytes
from generator.cost.shape import Linear, Shape, adapted, lora_params

__all__ = ["OPTIMIZER_STATES", "Static", "quantized_bytes", "static", "training_moments"]

AUTOGRAD = "saved tensors of the Transformers implementation, traced (tests/cost)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """Bytes on one device that do not depend on the batch. ``shards`` divides what is sharded."""

    weights: float
    gradients: float
    states: float
    step_temporary: float
    gathered_block: float
    gathered_ends: float
    """whole copies of sharded weights: one block's, and what is whole from the forward pass to the end of the backward"""
    reduce_buckets: float
    cast_weights: float
    """16-bit copies of the weights that autocast makes in a forward pass, and keeps until it ends"""
    cast_block: float
    """those of one block: what the backward pass needs of them where it computes the block again"""
    dequantized: float
    adapted_experts: float
    """bytes of one block's experts with their adapters added: PEFT makes the whole tensor anew in each forward pass"""
    trained: float
    adapted: tuple[Linear, ...]
    head_gradient: float
    embedding_gradient: float
    """what only comes when the backward pass has left the first block; tied to the head, it is there from the start"""
    states_paged: bool
    block: BlockActivations


def weight_bytes_per_param(run: Execution) -> float:
    """Bytes of a quantized weight, its scales included."""
    if run.quant == "nf4":
        return 0.5 + (c.NF4_DOUBLE_SCALE_BYTES if run.double_quant else c.NF4_SCALE_BYTES)
    if run.quant == "gptq-4bit":
        return 0.5 + c.GPTQ_EXTRA_BYTES
    if run.quant == "float8":
        return 1.0
    if run.quant == "int8":
        return 1.0 + c.INT8_EXTRA_BYTES
    return BYTES[run.weights_dtype]


def packed_params(shape: Shape, run: Execution) -> float:
    """Parameters that the quantizer packs. bitsandbytes replaces ``Linear`` layers only: experts that Transformers 5 fuses
    into one tensor stay as they are; as separate modules, or in a quantized checkpoint, they are packed too."""
    experts = run.expert_loop or run.quant not in ("nf4", "int8") or bool(run.compile)
    return (shape.linear_params + (shape.expert_params if experts else 0.0)) * shape.layers


def quantized_bytes(shape: Shape, run: Execution) -> float:
    """Bytes of the stored model: packed linears, and the rest in its own dtype (float32 where PEFT upcasts it)."""
    stored = BYTES[run.weights_dtype]
    if run.quant == "none":
        return shape.params * stored
    if run.quant == "gguf-4bit":
        return shape.params * c.GGUF_Q4_BYTES
    packed = packed_params(shape, run)
    sharded = run.sharding.by_fsdp  # PEFT's upcast is skipped there: shards must have one dtype
    rest = 4.0 if run.lora_upcast and run.mode == "train" and not sharded else stored
    return packed * weight_bytes_per_param(run) + (shape.params - packed) * rest


def static(shape: Shape, run: Execution) -> Static:
    full = run.train == "full"
    stored, compute = BYTES[run.weights_dtype], BYTES[run.compute_dtype]
    gathering = run.sharding.divides_weights
    zero_mixed = run.sharding.float32_masters and compute < 4  # 16-bit weights, and 32-bit masters beside the states
    masters = compute if zero_mixed else 4.0 if gathering and run.autocast_dtype else stored
    trained = float(shape.params) if full else lora_params(shape, run.lora_targets, run.lora_rank)
    adapter = masters if full or zero_mixed else 4.0  # PEFT keeps adapters in float32
    weights = shape.params * masters if full else quantized_bytes(shape, run) + trained * adapter
    shards = _shards(run)
    optimizer = OPTIMIZER_STATES[run.optimizer]
    summed = BYTES[run.sums_dtype] if zero_mixed and run.sums_dtype else adapter
    gradients = trained * summed if optimizer.stores_gradients else 0.0
    states = state_bytes(run.optimizer, trained, 4.0 if zero_mixed else adapter, shape.hidden)
    states += 4.0 * trained if run.sharding.float32_masters else 0.0  # of float32 weights too it keeps its own part
    fused = run.optimizer_fused or run.optimizer not in ("adamw", "adam", "lion", "sgd", "sgd-momentum")
    temporary = 4.0 * trained if run.sharding.float32_masters else 0.0 if fused else trained * adapter
    offloaded = run.offload_optimizer != "none"
    on_device = not (offloaded and (run.sharding.float32_masters or run.offload_params != "none"))
    block_bytes = shape.block_params * compute if run.quant == "none" else quantized_bytes(shape, run) / shape.layers
    if run.ep > 1:
        block_bytes -= shape.expert_params * compute * (1 - 1 / run.ep)
    gathers = gathering and (run.shards > 1 or run.offload_params != "none")
    tied = shape.head_params and not shape.head
    adapts_experts = not full and run.lora_targets == "all-linear" and not run.expert_loop
    cast_params = shape.block_params - (
        0.0 if run.expert_loop else shape.expert_params
    )  # grouped products are not autocast
    casts = compute / (run.tp * run.pp)
    keeps_copies = run.autocast_dtype and stored > compute and full and not gathering and not zero_mixed
    return Static(
        weights=0.0 if run.offload_params != "none" and gathering else weights / shards["weights"],
        gradients=gradients / shards["gradients"] if on_device else 0.0,
        states=0.0 if offloaded else states / shards["states"],
        step_temporary=0.0 if offloaded else temporary / shards["states"],
        gathered_block=block_bytes if gathers and not run.sharding.live_elements else 0.0,
        gathered_ends=_gathered_ends(shape, run, block_bytes, compute) if gathers else 0.0,
        reduce_buckets=_buckets(run, trained, adapter),
        cast_weights=(cast_params * shape.layers + shape.head_params) * casts if keeps_copies else 0.0,
        cast_block=cast_params * casts if keeps_copies else 0.0,
        dequantized=_largest_linear(shape) * compute if run.quant in ("nf4", "gptq-4bit") else 0.0,
        adapted_experts=shape.expert_params * compute if adapts_experts else 0.0,
        trained=trained,
        adapted=() if full else adapted(shape, run.lora_targets),
        head_gradient=shape.head_params * summed / shards["gradients"] if full and on_device else 0.0,
        embedding_gradient=shape.embedding * summed / shards["gradients"] if full and on_device and not tied else 0.0,
        states_paged=optimizer.paged,
        block=block_activations(shape, run),
    )


def _shards(run: Execution) -> dict[str, int]:
    """What divides weights, gradients and states on one device."""
    row, split = run.sharding, run.tp * run.pp
    divided = {"weights": row.divides_weights, "gradients": row.divides_gradients, "states": row.divides_states}
    return {name: split * (run.shards if by else 1) for name, by in divided.items()}


def _buckets(run: Execution, trained: float, size: float) -> float:
    """Buffers in which DeepSpeed's stages 1 and 2 reduce gradients and gather weights; DDP has a place for every gradient."""
    if run.sharding.buckets_every_gradient and run.dp > 1:
        return trained * size / (run.tp * run.pp)
    if not run.sharding.bucket_elements or run.dp <= 1:
        return 0.0
    elements = min(run.sharding.bucket_elements, trained)
    return 2 * c.ZERO_BUCKET_COPIES * elements * BYTES[run.compute_dtype]


def _gathered_ends(shape: Shape, run: Execution, block_bytes: float, compute: float) -> float:
    """The root unit (embedding and output layer) stays whole until the backward pass ends; all blocks if not resharded."""
    ends = (shape.embedding + shape.head) * compute
    if run.sharding.live_elements:
        live = max(run.sharding.live_elements * compute, ends + c.FSDP_LIVE_BLOCKS * block_bytes)
        return min(ends + shape.layers * block_bytes, live)
    return ends + (block_bytes * shape.layers if not run.sharding.reshards else 0.0)


def _largest_linear(shape: Shape) -> float:
    return float(max(x.inputs * x.outputs for x in shape.linears))


def checkpointed(shape: Shape, run: Execution) -> tuple[float, float]:
    """Blocks that are recomputed, and blocks that keep everything."""
    if not run.checkpoint_every:
        return 0.0, float(shape.layers)
    some = -(-shape.layers // run.checkpoint_every)
    return float(some), float(shape.layers - some)


def training_moments(shape: Shape, run: Execution, fixed: Static) -> dict[str, dict[str, float]]:
    """Bytes by part for each moment at which a training step can peak."""
    tokens = (
        float(run.micro_batch) * run.seq_len / (run.cp * run.tp)
    )  # tensor parallel with its sequence-parallel norms
    block = fixed.block
    recomputed, whole = checkpointed(shape, run)
    scores = block.saved_scores * run.seq_len
    in_flight = min(run.seq_len, shape.window) if shape.window and run.attention == "eager" else run.seq_len
    in_pipeline = (
        min(run.pp, run.accumulation) / run.pp
    )  # the first stage holds as many micro-batches as there are stages
    kept = in_pipeline * tokens * (recomputed * block.kept + whole * (block.saved + scores))
    if run.checkpoint_offload:
        kept -= tokens * recomputed * block.kept
    one = tokens * (block.peak + block.peak_scores * in_flight)
    if whole and not recomputed:
        one -= tokens * (block.saved + scores)  # already kept: only what the backward pass adds
    merged = fixed.adapted_experts * (whole + (1.0 if recomputed else 0.0))
    every = {"weights": fixed.weights, "optimizer states": fixed.states, "reduce buckets": fixed.reduce_buckets}
    carried = fixed.gradients if run.accumulation > 1 else 0.0
    moments = {
        "loss": {
            **every,
            "gathered weights": fixed.gathered_ends,
            "cast weights": fixed.cast_block * whole,
            "gradients": carried,
            "kept activations": kept,
            "adapted experts": fixed.adapted_experts * whole,
            "loss": loss_bytes(shape, run, tokens, block.residual_bytes, block.compute_bytes),
        },
        "last block": {
            **every,
            "gathered weights": fixed.gathered_ends + c.FSDP_LIVE_BLOCKS * fixed.gathered_block,
            "cast weights": fixed.cast_block * max(whole, 1.0),
            "gradients": max(carried, fixed.head_gradient),
            "kept activations": kept,
            "block in backward": max(one, 0.0),
            "dequantized weights": fixed.dequantized,
            "adapted experts": merged,
        },
        "first block": {
            **every,
            "gathered weights": fixed.gathered_ends + fixed.gathered_block,
            "cast weights": fixed.cast_block,
            "gradients": max(carried, fixed.gradients - fixed.embedding_gradient),
            "block in backward": tokens * (block.peak + block.peak_scores * in_flight),
            "dequantized weights": fixed.dequantized,
            "adapted experts": fixed.adapted_experts,
        },
        "optimizer step": update_moment(run, fixed),
    }
    if fixed.cast_weights:  # all of them are alive when the forward pass ends
        forward = loss_bytes(shape, run, tokens, block.residual_bytes, block.compute_bytes, backward=False)
        moments["forward"] = {**moments["loss"], "cast weights": fixed.cast_weights, "loss": forward}
    if retains_inputs(run):
        moments["first block"]["kept activations"] = tokens * 2 * (recomputed - 1) * block.kept
    return moments


def update_moment(run: Execution, fixed: Static) -> dict[str, float]:
    """Bytes by part while the optimizer updates: no batch is small enough to save them."""
    others_gone = run.sharding.divides_states and not run.sharding.divides_gradients  # freed before the update
    return {
        "weights": fixed.weights,
        "optimizer states": fixed.states,
        "reduce buckets": fixed.reduce_buckets,
        "gradients": fixed.gradients / (run.shards if others_gone else 1),
        "optimizer temporary": fixed.step_temporary,
    }


def retains_inputs(run: Execution) -> bool:
    """FSDP1's hooks on frozen blocks keep every checkpointed input and its gradient until the backward pass ends."""
    fsdp1 = run.fsdp_version == 1 and run.sharding.by_fsdp and run.dp > 1
    return fsdp1 and run.train == "lora" and run.checkpoint_every > 0


def peak_of(moments: dict[str, dict[str, float]]) -> tuple[str, dict[str, float]]:
    return max(moments.items(), key=lambda item: sum(item[1].values()))


SOURCES = {
    "weights": "parameters by storage dtype (config.json; quantizer's block sizes)",
    "optimizer states": "bytes a trained parameter by optimizer (generator/cost/optimizers.py)",
    "gathered weights": c.FSDP_LIVE_SOURCE,
    "reduce buckets": "overlap_comm holds 4.5 copies of both buckets (Transformers docs, deepspeed)",
    "cast weights": "autocast keeps the 16-bit copy of each trained weight until the pass ends (torch docs, amp)",
    "gradients": "one gradient a trained parameter, in its dtype (torch.autograd)",
    "kept activations": AUTOGRAD,
    "loss": "logits, float32 copy, log-softmax and their gradients (transformers loss_utils.ForCausalLMLoss)",
    "block in backward": AUTOGRAD,
    "dequantized weights": "one layer's weights dequantized at a time (bitsandbytes, gptqmodel)",
    "adapted experts": "PEFT adds the adapter to the fused experts as a whole tensor (peft ParamWrapper)",
    "optimizer temporary": "torch.optim foreach makes one temporary the size of the parameters",
}
