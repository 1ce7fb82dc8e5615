"""Formulas that the guides and DeepSpeed print for the same things, as oracles of the cost model's own. Bytes."""

from __future__ import annotations

from dataclasses import dataclass

HOST_FACTOR = 1.5
"""DeepSpeed's own allowance for buffers on the host (additional_buffer_factor)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes on each device and on the host of one node."""

    device: float
    host: float


def estimate_zero2(params: float, devices: int, *, offload_optimizer: bool) -> Need:
    """DeepSpeed runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs; one node."""
    if offload_optimizer:
        return Need(device=2 * params, host=params * max(4 * devices, 16) * HOST_FACTOR)
    return Need(device=2 * params + 18 * params / devices, host=params * 4 * devices * HOST_FACTOR)


def estimate_zero3(
    params: float,
    largest_layer: float,
    *,
    devices_per_node: int,
    nodes: int = 1,
    offload_optimizer: bool = False,
    offload_params: bool = False,
) -> Need:
    """DeepSpeed runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs, with zero_init."""
    devices, share = devices_per_node * nodes, 1 / nodes
    gathered = 4 * largest_layer
    if offload_params and offload_optimizer:
        return Need(device=gathered, host=params * 18 * share * HOST_FACTOR)
    if offload_optimizer:
        return Need(device=gathered + 2 * params / devices, host=params * 16 * share * HOST_FACTOR)
    return Need(device=gathered + 18 * params / devices, host=largest_layer * 4 * devices_per_node * HOST_FACTOR)


def estimate_zero2_buckets(allgather_elements: float, reduce_elements: float) -> float:
    """Device bytes of ``overlap_comm``: 4.5 copies of both buckets in 16 bits (Transformers docs, deepspeed)."""
    return 4.5 * 2 * (allgather_elements + reduce_elements)


def estimate_loading(weights: float, largest_shard: float, processes: int, how: str) -> float:
    """Host bytes of one node while a checkpoint loads. ``how``: naive, sharded, meta (Transformers docs, big_models)."""
    one = {"naive": 2 * weights, "sharded": weights + largest_shard, "meta": weights}[how]
    return one * processes


def estimate_rough_activations(seq_len: int, heads: int, hidden: int, batch: int) -> float:
    """DeepSpeed's rule of thumb for a block, marked incomplete by its authors (memory.rst)."""
    return (2 * seq_len * heads + 16 * hidden) * seq_len * batch


def estimate_eager_scores(heads: int, seq_len: int) -> float:
    """Attention scores of one block and sequence in 16 bits (Transformers docs, llm_tutorial_optimization)."""
    return heads * 2.0 * seq_len**2
