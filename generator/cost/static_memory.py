"""Bytes on one device that do not depend on the batch: weights, gradients, optimizer states, and what is made of them.

Each has a function of its own; what divides them over devices (FSDP, ZeRO) is in ``sharding.py``.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple

from generator.cost.activations import READ, BlockActivations, compute_block_activations
from generator.cost.adapters import compute_norm_bytes, count_magnitudes, count_unpacked
from generator.cost.deepspeed import (
    allocates_gradients_at_once,
    compute_large_gradient,
    compute_update_temporary,
    keeps_gradient_buffer,
    leaves_gradients_to_host,
    mixes_in_16_bits,
)
from generator.cost.execution import BYTES, Execution
from generator.cost.optimizers import (
    compute_moment_bytes,
    compute_projected_bytes,
    compute_state_bytes,
)
from generator.cost.shape import Linear, Shape, count_lora_params, select_adapted
from generator.cost.sharding import (
    compute_gathered_block,
    compute_gathered_ends,
    compute_reduce_buckets,
    compute_summed_bytes,
    compute_whole_share,
    count_adapter_shards,
    count_shards,
)
from generator.cost.stages import compute_fullest_share, compute_most_layers_share
from generator.cost.weights import (
    compute_dequantized_bytes,
    compute_placed_share,
    compute_stored_bytes,
    compute_undivided_scales,
    packs_experts,
)


class StaticMemory(NamedTuple):
    """Bytes on one device, already divided by its shards."""

    weights: float
    gradients: float
    states: float
    step_temporary: float
    gathered_block: float
    gathered_ends: float
    """whole copies of sharded weights: one block's, and what is whole from the forward pass to the end of the backward"""
    reduce_buckets: float
    summed_at_once: float
    """what is summed over the copies at once, when the last backward pass has ended"""
    cast_weights: float
    """16-bit copies of the weights that autocast makes in a forward pass, and keeps until it ends"""
    cast_block: float
    """those of one block: what the backward pass needs of them where it computes the block again"""
    cast_experts: float
    """of those of one block, what is experts that are multiplied as groups: autocast's cache has no part in them"""
    cast_head: float
    """the output layer's"""
    dequantized: float
    adapted_experts: float
    """bytes of one block's experts with their adapters added: PEFT makes the whole tensor anew in each forward pass"""
    trained: float
    """trained parameters of the whole model"""
    state_bytes: float
    weight_bytes: float
    """optimizer states and weights of the whole model, wherever they are"""
    adapted: tuple[Linear, ...]
    head_gradient: float
    """of all gradients, what is there when the output layer's has come"""
    lasting_gradients: float
    """of all gradients, the buffer that is there in every moment"""
    embedding_copy: float
    """one whole gradient of the embedding"""
    embedding_gradient: float
    """what only comes when the backward pass has left the first block; tied to the head, it is there from the start"""
    states_paged: bool
    block: BlockActivations


def needs_as_much(static: StaticMemory, other: StaticMemory) -> bool:
    """Whether a device with ``static`` holds at least what one with ``other`` does at every moment: its states and the temporary of
    its update are no smaller, and all else that a device holds is equal."""
    if static.states < other.states or static.step_temporary < other.step_temporary:
        return False
    return static == other._replace(
        states=static.states,
        step_temporary=static.step_temporary,
        state_bytes=static.state_bytes,
        states_paged=static.states_paged,
    )


STATIC_FIELDS = attrgetter(
    *READ,
    *("mode", "engine", "double_quant", "sums_dtype", "optimizer", "optimizer_fused", "offload_optimizer"),
    *("offload_params", "autocast_cache"),
    *("dp", "dp_shard", "tp", "pp", "cp", "ep", "own_loop", "compile", "flat_gradients"),
)
"""all that static memory depends on: a search asks for dozens of executions that differ elsewhere; one call into C"""


TIMED = (
    *("tf32", "nodes", "dataloader_workers", "pin_memory", "padding_left", "padding_free", "trained_share"),
    *("row_order", "sorted_batches"),
)
"""fields that no byte of a device depends on"""
JOINED = ("micro_batch", "accumulation", "compile", "dp", "dp_shard", "length_shares")
"""fields of which a part is enough, and the batch"""
SEEN_BY_MEMORY = attrgetter(*(f.name for f in fields(Execution) if f.name not in (*TIMED, *JOINED)))


def identify_memory(run: Execution) -> tuple:
    """All that the memory of a device depends on, beside the batch: runs of which it is equal need the same. Of compilation it is
    whether bitsandbytes packs experts, of the copies of a batch how many share states, and whether there are several."""
    row = run.sharding
    divided = row.divides_weights or row.divides_gradients or row.divides_states
    lengths = run.length_shares if run.rows != "batch" else ()
    return (*SEEN_BY_MEMORY(run), run.shards if divided else 1, run.dp > 1, packs_experts(run), lengths)


class ParameterBytes(NamedTuple):
    """Bytes per parameter, by what is kept of it."""

    base: float
    """a weight of the model, where all of it is trained"""
    trained: float
    """a trained weight: of the model, or of an adapter"""
    gradient: float
    state_dtype: float
    """of the dtype in which the optimizer's states are kept"""


def compute_static_memory(shape: Shape, run: Execution, block: BlockActivations | None = None) -> StaticMemory:
    """``block``: of this run, where it is known."""
    each = find_parameter_bytes(run)
    trained = count_trained_params(shape, run)
    shards = count_shards(run)
    cast = compute_cast_copies(shape, run)
    gradients_here = not leaves_gradients_to_host(run)
    offloaded = run.offload_optimizer != "none"
    # only what is divided can be offloaded: its blocks are gathered from the host as from other devices
    weights_here = run.offload_params == "none" or not run.sharding.divides_weights
    # with frozen weights neither end of the model has a gradient
    per_gradient = each.gradient / shards.gradients if run.train == "full" and gradients_here else 0.0
    gradient_shards = count_adapter_shards(shape, run, shards.gradients)
    gradients = compute_gradients(run, each, trained) / gradient_shards if gradients_here else 0.0
    if run.flat_gradients:
        gradients = shape.params * each.base / run.parts
    at_once = allocates_gradients_at_once(run)
    weights, states = compute_weights(shape, run, each, trained), compute_states(shape, run, each, trained)
    fullest = compute_fullest_share(shape, run) * compute_whole_share(shape, run)
    fullest_trained = fullest if run.train == "full" else compute_most_layers_share(shape, run)
    row, placed = run.sharding, compute_placed_share(shape, run) if run.train == "full" else 1.0
    gradients *= 1.0 if row.divides_gradients else placed
    kind = run.optimizer
    return StaticMemory(
        weights=(
            divide_weights(shape, run, weights, trained * each.trained, shards.weights, fullest, fullest_trained)
            * (1.0 if row.divides_weights else placed)
            if weights_here
            else 0.0
        )
        + compute_undivided_scales(shape, run, weights_here),
        gradients=gradients * fullest_trained,
        states=0.0
        if offloaded or borrows_states(run)
        else fullest_trained
        * states
        * (1.0 if row.divides_states else placed)
        / count_adapter_shards(shape, run, shards.states),
        step_temporary=0.0
        if offloaded
        else fullest_trained * compute_step_temporary(shape, run, each, trained, shards.states),
        gathered_block=compute_gathered_block(shape, run),
        gathered_ends=compute_gathered_ends(shape, run),
        reduce_buckets=compute_reduce_buckets(shape, run, fullest_trained * trained, each.trained),
        summed_at_once=compute_summed_bytes(shape, run, fullest_trained * trained, each.trained),
        cast_weights=cast.kept,
        cast_block=cast.block,
        cast_experts=cast.experts,
        cast_head=cast.head,
        dequantized=compute_dequantized_bytes(shape, run) + compute_norm_bytes(shape, run),
        adapted_experts=compute_adapted_experts(shape, run),
        trained=trained,
        state_bytes=states,
        weight_bytes=weights,
        adapted=() if run.train == "full" else select_adapted(shape, run.lora_targets),
        head_gradient=gradients + compute_large_gradient(shape, run)
        if at_once
        else shape.head_params * per_gradient * (kind.stores_gradients or ties_head(shape)),
        lasting_gradients=gradients * fullest_trained if keeps_gradient_buffer(run) else 0.0,
        embedding_copy=shape.embedding * per_gradient,
        embedding_gradient=0.0 if at_once or ties_head(shape) else shape.embedding * per_gradient,
        states_paged=kind.paged,
        block=block or compute_block_activations(shape, run),
    )


def find_parameter_bytes(run: Execution) -> ParameterBytes:
    stored, compute = BYTES[run.weights_dtype], BYTES[run.compute_dtype]
    mixed = mixes_in_16_bits(run)
    # FSDP's mixed precision keeps float32 shards and casts what it gathers
    shard = 4.0 if run.sharding.divides_weights and run.autocast_dtype else stored
    base = compute if mixed else shard
    trained = base if run.train == "full" or mixed else 4.0  # PEFT keeps adapters in float32
    # DeepSpeed sums in a dtype of its own; autograd in that of the weight
    summed = BYTES[run.sums_dtype] if mixed and run.sums_dtype else trained
    return ParameterBytes(base=base, trained=trained, gradient=summed, state_dtype=4.0 if mixed else trained)


def count_trained_params(shape: Shape, run: Execution) -> float:
    if run.train == "full":
        return float(shape.params)
    made = count_lora_params(shape, run.lora_targets, run.lora_rank, expert_loop=run.expert_loop)
    # PEFT trains a copy of a new head (modules_to_save), beside the one that it keeps
    return made + count_magnitudes(shape, run) + (shape.head if shape.classifies else 0)


def compute_weights(shape: Shape, run: Execution, each: ParameterBytes, trained: float) -> float:
    if run.train == "full":
        return shape.params * each.base
    return compute_stored_bytes(shape, run) + trained * each.trained  # the frozen base, and adapters beside it


def divide_weights(
    shape: Shape, run: Execution, weights: float, adapters: float, shards: int, fullest: float, fullest_trained: float
) -> float:
    """``weights``: the model's, with ``adapters`` if it has any. The last two: of the stage that has most of each."""
    if run.train == "full":
        return fullest * weights / shards
    return fullest * (weights - adapters) / shards + fullest_trained * adapters / count_adapter_shards(
        shape, run, shards
    )


def compute_gradients(run: Execution, each: ParameterBytes, trained: float) -> float:
    return trained * each.gradient if run.optimizer.stores_gradients else 0.0


def compute_states(shape: Shape, run: Execution, each: ParameterBytes, trained: float) -> float:
    states = compute_state_bytes(run.optimizer, trained, each.state_dtype, shape.hidden)
    kind = run.optimizer
    if kind.embedding_bytes is not None and run.train == "full":
        states += shape.embedding * (kind.embedding_bytes - kind.fixed_bytes)
    if kind.rank and run.train == "full":
        projected = compute_projected_bytes(kind, each.state_dtype, shape.hidden)
        states += (shape.embedding + shape.head) * (compute_moment_bytes(kind, each.state_dtype) - projected)
    if kind.unpacked_bytes and run.train != "full":
        states += count_unpacked(shape, run) * (kind.unpacked_bytes - kind.fixed_bytes)
    if run.sharding.float32_masters:  # of float32 weights, too, DeepSpeed keeps its own part, flat
        states += 4.0 * trained
    return states


def borrows_states(run: Execution) -> bool:
    """Whether the states are in host memory, and the device has those of one weight at a time."""
    return run.optimizer.lives_on_host and run.threads is None


def compute_step_temporary(shape: Shape, run: Execution, each: ParameterBytes, trained: float, shards: int) -> float:
    """What only lives while the optimizer updates, on one device."""
    if not run.optimizer.stores_gradients and run.train == "full":
        # the embedding's gradient comes last; tied, the output layer's has waited for it, and both are added up
        return shape.embedding * each.gradient * (3 if ties_head(shape) else 1)
    # foreach computes one operation for all parameters at once: its result is as large as they are
    foreach = run.optimizer.foreach and not run.optimizer_fused
    if run.sharding.float32_masters:
        return compute_update_temporary(run, trained) + (4.0 * trained / shards if foreach else 0.0)
    return trained * each.trained / shards if foreach else 0.0


def ties_head(shape: Shape) -> bool:
    """Logits of the vocabulary's width without weights of their own."""
    return bool(shape.head_params) and not shape.head


class CastCopies(NamedTuple):
    """Bytes of autocast's 16-bit copies of trained weights: one block's, of that its experts', the output layer's, and of all what is
    kept until the forward pass ends."""

    block: float
    experts: float
    head: float
    kept: float


def compute_cast_copies(shape: Shape, run: Execution) -> CastCopies:
    """Only autocast casts weight by weight. Its cache keeps the copies of those that need a gradient until the forward pass ends;
    without it, each goes with the product that read it, unless that saves it. FSDP and DeepSpeed cast on their own."""
    compute = BYTES[run.compute_dtype]
    casts = run.autocast_dtype and BYTES[run.weights_dtype] > compute and run.train == "full"
    if not casts or run.sharding.divides_weights or mixes_in_16_bits(run):
        return CastCopies(0.0, 0.0, 0.0, 0.0)
    # grouped products are not on autocast's list: expert_products.py casts them as it would, and its cache has no part in them
    grouped = 0.0 if run.expert_loop or shape.every_expert else shape.expert_params
    here = compute / run.tp
    cached = (shape.block_params - grouped) * shape.layers / run.pp + shape.head_params if run.autocast_cache else 0.0
    return CastCopies(shape.block_params * here, grouped * here, shape.head_params * here, cached * here)


def compute_adapted_experts(shape: Shape, run: Execution) -> float:
    if run.train == "full" or run.lora_targets != "all-linear" or run.expert_loop or not shape.adapted_experts:
        return 0.0
    return shape.expert_params * BYTES[run.compute_dtype]
