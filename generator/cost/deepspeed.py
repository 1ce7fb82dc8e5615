"""Which buffers DeepSpeed's optimizers (and FSDP's offloading) keep beside the model, and what crosses the link to the host.

Read in DeepSpeed 0.19.8: runtime/bf16_optimizer.py, runtime/zero/stage_1_and_2.py, runtime/zero/stage3.py and
runtime/swap_tensor; and in torch 2.13: distributed/fsdp/_fully_shard. tests/cost/test_zero_buffers.py sums DeepSpeed's own.
An owned parameter is a trained one that this process updates.
"""

from __future__ import annotations

from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape


def mixes_in_16_bits(run: Execution) -> bool:
    """DeepSpeed under bf16 or fp16: 16-bit weights on every device, and float32 masters beside the states."""
    return run.sharding.float32_masters and BYTES[run.compute_dtype] < BYTES["float32"]


def sums_apart(run: Execution) -> bool:
    """Whether gradients of 16 bits are summed in a float32 buffer of their own (``data_types.grad_accum_dtype``)."""
    return mixes_in_16_bits(run) and run.sums_dtype == "float32"


def sums_all_gradients(run: Execution) -> bool:
    """Stage 1 with bf16 weights and float32 sums: DeepSpeed takes its BF16_Optimizer, whose sums are of the whole model on
    every device and are never freed (engine.py, _do_optimizer_sanity_check)."""
    own = run.sharding.by_deepspeed and sums_apart(run)
    return own and not run.sharding.divides_gradients and run.compute_dtype == "bfloat16"


def leaves_gradients_to_host(run: Execution) -> bool:
    """Whether no buffer of the device holds gradients between their reduction and the update.

    Stage 2 with float32 sums keeps them on the device wherever the optimizer is; stage 3 keeps them where the optimizer is.
    FSDP moves them where the weights are out as well (CPUOffloadPolicy).
    """
    if run.offload_optimizer == "none":
        return False
    if run.sharding.float32_masters:
        return run.sharding.divides_weights or not sums_apart(run)
    return run.offload_params != "none"


def keeps_gradient_buffer(run: Execution) -> bool:
    """Whether the device's gradients are one buffer that outlives the step: stage 3's, BF16_Optimizer's, and Megatron-LM's and
    nanotron's float32 sums (FP32GradientAccumulator)."""
    if leaves_gradients_to_host(run):
        return False
    own = run.sharding.reduces_at_end and sums_apart(run)
    return own or sums_all_gradients(run) or (run.sharding.float32_masters and run.sharding.divides_weights)


def allocates_gradients_at_once(run: Execution) -> bool:
    """Whether all gradients of the device have their place when the first one comes (stage 2: averaged_gradients)."""
    return keeps_gradient_buffer(run) or (sums_apart(run) and run.sharding.divides_gradients)


def compute_large_gradient(shape: Shape, run: Execution) -> float:
    """Device bytes of the output layer's gradient at stage 2, where it is larger than a bucket: by itself it waits for the next
    one, and is cast whole as it is added to the float32 sums (extra_large_param_to_reduce)."""
    large = run.train == "full" and shape.head_params > run.sharding.bucket_elements > 0
    whole = sums_apart(run) and run.sharding.divides_gradients and large
    return shape.head_params * (BYTES[run.compute_dtype] + BYTES["float32"]) / (run.tp * run.pp) if whole else 0.0


def compute_update_temporary(run: Execution, trained: float) -> float:
    """Device bytes that live only while the update runs, the optimizer's own temporaries aside."""
    owned = trained / run.owners
    if run.sharding.divides_weights:  # a sub-group's gradients are flattened before it is updated
        return BYTES["float32"] * min(owned, c.ZERO_SUB_GROUP)
    if sums_all_gradients(run):  # the sums are cast, all at once, to be reduced in the dtype of the weights
        return BYTES[run.compute_dtype] * trained / run.parts
    # a buffer that is float32 and flat becomes the master's gradient as it is
    return 0.0 if sums_apart(run) else BYTES["float32"] * owned


def compute_staging(shape: Shape, run: Execution) -> float:
    """Device bytes of stage 2's buffer for one gradient on its way to the host (temp_grad_buffer_for_gpu_offload)."""
    offloads = run.offload_optimizer != "none" and run.sharding.float32_masters and not run.sharding.divides_weights
    return BYTES[run.compute_dtype] * count_largest_param(shape) if offloads and run.train == "full" else 0.0


def compute_single_buckets(run: Execution) -> float:
    """Device bytes of the two buckets that stages 1 and 2 reduce in where there is nothing to reduce with: one device."""
    if sums_all_gradients(run):
        return 0.0
    return 2 * run.sharding.bucket_elements * BYTES[run.compute_dtype] if run.sharding.by_deepspeed else 0.0


def count_largest_param(shape: Shape) -> float:
    """Elements of the largest parameter. Fused experts hold gate and up in one, two thirds of them all."""
    linear = max((float(x.inputs * x.outputs) for x in shape.linears), default=0.0)
    return max(float(shape.embedding), float(shape.head), linear, shape.expert_params * 2 / 3)


def count_host_gradient_bytes(run: Execution) -> float:
    """Host bytes per owned parameter of gradients and of what passes through beside the optimizer's states."""
    compute = BYTES[run.compute_dtype]
    if not run.sharding.float32_masters:  # FSDP: gradients lie beside the weights, in their dtype
        return BYTES["float32"]
    if run.sharding.divides_weights:
        # grad_partitions_flat_buffer, and the masters' .grad where they are not swapped to disk
        sums = BYTES["float32"] if sums_apart(run) else compute
        return sums + (BYTES["float32"] if run.offload_optimizer == "cpu" else 0.0)
    # the masters' .grad, the weights' way back (param_buffer_of_bit16_for_cpu_offload_groups), accumulated_grads_in_cpu
    accumulates = run.accumulation > 1 and not sums_apart(run)
    return BYTES["float32"] + compute + (compute if accumulates else 0.0)


def compute_swap_buffers(run: Execution, owned: float) -> float:
    """Page-locked host bytes of one process through which states and weights pass on their way to a disk."""
    locked = 0.0
    if run.offload_optimizer == "nvme":
        locked += c.NVME_STATE_BUFFERS * BYTES["float32"] * min(owned, c.ZERO_SUB_GROUP)
    if run.offload_params == "nvme":
        # its buffers, what stays in memory (max_in_cpu), and one sub-group on its way
        more = min(owned, c.ZERO_SUB_GROUP) if owned > c.NVME_PARAMS_IN_MEMORY else 0.0
        elements = c.NVME_PARAM_BUFFERS + min(owned, c.NVME_PARAMS_IN_MEMORY) + more
        locked += elements * BYTES[run.compute_dtype]
    return locked


class HostTraffic(NamedTuple):
    """Bytes per owned parameter of one optimizer step, all micro-batches together."""

    gradients: float
    """over the link, both ways, while the backward passes run"""
    weights: float
    """over the link, back to the device after the update"""
    memory: float
    """read and written in the host's memory by the update and around it"""


def count_host_traffic(run: Execution) -> HostTraffic:
    """What an optimizer on the host moves, n being the micro-batches of a step.

    Stage 2 with float32 sums sends them once. Without, it brings the sum of 16 bits to the device and back in every
    micro-batch. Stage 3 does that with sums that lie on the host: the first gradient goes there, is cast there, and comes
    back; at the end it goes to the masters' gradient. FSDP sends float32 shards of gradients in every micro-batch, and the
    host adds them up; weights come over in each pass (``compute_fetch_seconds``).
    """
    n, compute = run.accumulation, BYTES[run.compute_dtype]
    update = c.HOST_ADAM_BYTES + c.HOST_SCALE_BYTES
    if not run.sharding.float32_masters:
        return HostTraffic(gradients=n * BYTES["float32"], weights=0.0, memory=update + (n - 1) * 3 * BYTES["float32"])
    written = BYTES["float32"] + compute  # the new masters are cast on the host
    weights = compute if run.offload_params == "none" else 0.0
    if run.sharding.divides_weights:
        sums = BYTES["float32"] if sums_apart(run) else compute
        gradients = compute + sums + (n - 1) * 2 * sums + BYTES["float32"]
        cast = compute + sums if sums != compute else 0.0
        return HostTraffic(gradients=gradients, weights=weights, memory=update + written + cast)
    summed_here = 0.0 if sums_apart(run) or n == 1 else (2 * n - 1) * compute
    return HostTraffic(gradients=summed_here + BYTES["float32"], weights=weights, memory=update + written)
