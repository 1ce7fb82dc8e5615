"""Published memory formulas that stand on their own: DeepSpeed's estimators, its buckets, loading. Bytes.

They describe DeepSpeed's own buffers and what a job needs before the first step; the step itself is memory.py's work.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST_FACTOR = 1.5
"""DeepSpeed's own allowance for buffers on the host (additional_buffer_factor)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes on each device and on the host of one node."""

    device: float
    host: float


def zero2(params: float, devices: int, *, offload_optimizer: bool) -> Need:
    """DeepSpeed runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs; one node."""
    if offload_optimizer:
        return Need(device=2 * params, host=params * max(4 * devices, 16) * HOST_FACTOR)
    return Need(device=2 * params + 18 * params / devices, host=params * 4 * devices * HOST_FACTOR)


def zero3(
    params: float,
    largest_layer: float,
    *,
    devices_per_node: int,
    nodes: int = 1,
    offload_optimizer: bool = False,
    offload_params: bool = False,
    zero_init: bool = True,
) -> Need:
    """DeepSpeed runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs."""
    devices, share = devices_per_node * nodes, 1 / nodes
    gathered = 4 * largest_layer
    if offload_params and offload_optimizer:
        host = params * 18 * share if zero_init else params * max(4 * devices_per_node, 18 * share)
        return Need(device=gathered, host=host * HOST_FACTOR)
    if offload_optimizer:
        host = params * 16 * share if zero_init else params * max(4 * devices_per_node, 16 * share)
        return Need(device=gathered + 2 * params / devices, host=host * HOST_FACTOR)
    host = largest_layer * 4 * devices_per_node if zero_init else params * 4 * devices_per_node
    return Need(device=gathered + 18 * params / devices, host=host * HOST_FACTOR)


def zero2_buckets(allgather_elements: float, reduce_elements: float) -> float:
    """Device bytes of ``overlap_comm``: 4.5 copies of both buckets in 16 bits (Transformers docs, deepspeed)."""
    return 4.5 * 2 * (allgather_elements + reduce_elements)


def zero3_auto_buckets(hidden: int) -> dict[str, int]:
    """What "auto" becomes (transformers/integrations/deepspeed.py), in elements."""
    return {
        "reduce_bucket_size": hidden * hidden,
        "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": 10 * hidden,
    }


def pinned_host(params: float, *, offload_params: bool, accumulates: bool) -> float:
    """Page-locked host bytes of ZeRO-3 offload (DeepSpeed docs, memory.rst)."""
    if not offload_params:
        return 4 * params
    return 6 * params + (2 * params if accumulates else 0)


def consolidation_host(params: float) -> float:
    """Host bytes of zero_to_fp32.py: twice the final float32 checkpoint (Transformers docs, deepspeed)."""
    return 2 * 4 * params


def loading_host(weights: float, largest_shard: float, processes: int, how: str) -> float:
    """Host bytes of one node while a checkpoint loads. ``how``: naive, sharded, meta (Transformers docs, big_models)."""
    one = {"naive": 2 * weights, "sharded": weights + largest_shard, "meta": weights}[how]
    return one * processes


def rough_activations(seq_len: int, heads: int, hidden: int, batch: int) -> float:
    """DeepSpeed's rule of thumb for a block, marked incomplete by its authors (memory.rst)."""
    return (2 * seq_len * heads + 16 * hidden) * seq_len * batch


def eager_scores(heads: int, seq_len: int) -> float:
    """Attention scores of one block and sequence in 16 bits (Transformers docs, llm_tutorial_optimization)."""
    return heads * 2.0 * seq_len**2


def global_batch(per_device: int, devices: int, accumulation: int) -> int:
    """Sequences of one optimizer step."""
    return per_device * devices * accumulation
