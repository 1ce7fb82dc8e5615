"""What FSDP, HSDP, ZeRO and DDP do to the memory of one device: shards, gathered weights, buckets of gradients. Bytes.

What each of them divides and gathers is a row of ``generator/case/strategies.py``; ``static_memory.py`` divides by these shards.
"""

from __future__ import annotations

from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.deepspeed import compute_single_buckets, compute_staging, sums_all_gradients
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import ROW_PARALLEL, Shape, select_adapted
from generator.cost.stages import compute_most_layers_share
from generator.cost.weights import compute_stored_bytes, compute_stored_expert_bytes


class Shards(NamedTuple):
    """Devices over which each kind of model state is divided."""

    weights: int
    gradients: int
    states: int


def sums_whole_gradients(run: Execution) -> bool:
    """Stages under FSDP2 add up whole gradients, of weights that stay whole for a step, and reduce them with the last micro-batch
    (torch 2.13's pipelining, ``backward_maybe_with_nosync``)."""
    return run.sharding.by_fsdp and run.pp > 1


def count_shards(run: Execution) -> Shards:
    row = run.sharding
    parts = run.parts
    return Shards(
        weights=parts * (run.shards if row.divides_weights else 1),
        gradients=parts * (run.shards if row.divides_gradients and not sums_whole_gradients(run) else 1),
        states=parts * (run.shards if row.divides_states else 1),
    )


def count_adapter_shards(shape: Shape, run: Execution, shards: int) -> float:
    """``shards``: of what is trained otherwise. Where sequences or matrices are divided, the loop shards the base as it is read, and each
    copy has the adapters that come after it whole; of tensor parts each has one factor whole, and a part of the other. A stage is
    sharded with its adapters (templates/fragments/division, adapter_parts.py)."""
    if run.train == "full":
        return shards
    if run.own_loop and run.tp > 1:
        adapted = select_adapted(shape, run.lora_targets)
        whole = sum((x.inputs + x.outputs) * x.share for x in adapted)
        sides = [(x.inputs, x.outputs) if x.role in ROW_PARALLEL else (x.outputs, x.inputs) for x in adapted]
        held = sum((part / run.tp + kept) * x.share for x, (part, kept) in zip(adapted, sides, strict=True))
        return run.pp * whole / held * (shards / run.parts if run.pp > 1 else 1)
    return run.parts if run.cp > 1 and run.sharding.by_fsdp else shards


def gathers_weights(run: Execution) -> bool:
    """Whether blocks are made whole for their products: from other devices, or from the host."""
    return run.sharding.divides_weights and (run.shards > 1 or run.offload_params != "none")


def compute_block_bytes(shape: Shape, run: Execution) -> float:
    """One block's weights, whole but for tensor parts, as they are multiplied."""
    compute = BYTES[run.compute_dtype]
    packed = run.quant != "none"  # they travel packed, with all that is stored of the model
    gathered = compute_stored_bytes(shape, run) / shape.layers if packed else shape.block_params * compute
    if run.ep > 1:  # tokens travel to the experts: other devices' experts are never gathered
        gathered -= (compute_stored_expert_bytes(shape, run) if packed else shape.expert_params * compute) * (
            1 - 1 / run.ep
        )
    return gathered / run.tp * compute_whole_share(shape, run)


def divides_attention(shape: Shape, run: Execution) -> bool:
    """The loop divides by Transformers' plans; Megatron and serving engines divide all heads."""
    return run.tp == 1 or not (shape.whole_attention and run.own_loop)


def count_attention_parts(shape: Shape, run: Execution) -> int:
    """Over how many tensor parts the heads are divided."""
    return run.tp if divides_attention(shape, run) else 1


def compute_whole_share(shape: Shape, run: Execution) -> float:
    """Parameters of a tensor part, over what each had if all of them were divided."""
    if divides_attention(shape, run):
        return 1.0
    return 1.0 + (run.tp - 1) * shape.attention_params * shape.layers / shape.params


def compute_gathered_block(shape: Shape, run: Execution) -> float:
    """FSDP's unit in use. ZeRO-3 has no units: its live parameters are all in ``compute_gathered_ends``."""
    if not gathers_weights(run) or run.sharding.live_elements:
        return 0.0
    return compute_block_bytes(shape, run)


def compute_gathered_ends(shape: Shape, run: Execution) -> float:
    """What stays whole from the forward pass to the end of the backward pass."""
    if not gathers_weights(run):
        return 0.0
    compute = BYTES[run.compute_dtype]
    block = compute_block_bytes(shape, run)
    blocks = block * shape.layers / run.pp * compute_most_layers_share(shape, run)
    # FSDP's root unit holds the embedding and the output layer; it is not resharded after the forward pass
    both = shape.embedding + shape.head if run.pp == 1 else max(shape.embedding, shape.head)
    ends = both * compute / run.tp
    if run.sharding.live_elements:
        # ZeRO-3 lets go of weights only beyond its limit of live ones, but never has fewer than it works with
        live = max(run.sharding.live_elements * compute, ends + c.FSDP_LIVE_BLOCKS * block)
        return min(ends + blocks, live)
    return ends if run.sharding.reshards else ends + blocks


def compute_reduce_buckets(shape: Shape, run: Execution, trained: float, bytes_per_gradient: float) -> float:
    """Buffers in which DDP and DeepSpeed's stages 1 and 2 reduce gradients (and these gather weights), or send them away."""
    if run.dp <= 1:
        return compute_single_buckets(run) + compute_staging(shape, run)
    if run.sharding.buckets_every_gradient:  # DDP copies: the Trainer leaves gradient_as_bucket_view off
        return trained * bytes_per_gradient / (run.tp * run.pp)
    if sums_all_gradients(run):
        return 0.0
    # two kinds of bucket, of gradients and of weights, as large as each other
    elements = min(run.sharding.bucket_elements, trained)
    return 2 * c.ZERO_BUCKET_COPIES * elements * BYTES[run.compute_dtype] + compute_staging(shape, run)


def compute_summed_bytes(shape: Shape, run: Execution, trained: float, bytes_per_gradient: float) -> float:
    """The one tensor that several gradients become, and are summed in, once all are there. It is sent when it has
    ``summed_elements``, which its last weight may bring it far beyond."""
    if run.dp * run.cp <= 1 or not run.sharding.summed_elements:
        return 0.0
    largest = max([shape.head, *(x.inputs * x.outputs for x in shape.linears)]) if run.train == "full" else 0.0
    return bytes_per_gradient * min(trained / run.parts, run.sharding.summed_elements + largest)


def keeps_checkpointed_inputs(run: Execution) -> bool:
    """FSDP1's hooks on frozen blocks keep every checkpointed input and its gradient until the backward pass ends; where adapters are
    in a block's own flat parameter, none is frozen."""
    fsdp1 = run.fsdp_version == 1 and run.sharding.by_fsdp and run.dp > 1 and not run.flat_gradients
    return fsdp1 and run.train == "lora" and run.checkpoint_every > 0
