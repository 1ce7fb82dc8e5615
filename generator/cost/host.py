"""Host memory of one node: for each process interpreter, loading and workers; pinned copies and offloaded states once."""

from __future__ import annotations

import math

from generator.case.strategies import EACH_ITS_SHARD, ONE_OF_A_NODE
from generator.cost import constants as c
from generator.cost.deepspeed import compute_staging, compute_swap_buffers, count_host_gradient_bytes
from generator.cost.estimate import GIB, CostItem
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.static_memory import StaticMemory, borrows_states
from generator.cost.weights import compute_stored_bytes

STATES = (
    "float32 masters and two moments (deepspeed 0.19.8: single_partition_of_fp32_groups, fp32_partitioned_groups_flat)"
)
GRADIENTS = (
    "float32 gradients, their sums, and staging buffers (deepspeed 0.19.8, stage_1_and_2.py and stage3.py; torch FSDP2)"
)
WEIGHTS = "the weights' own copy (deepspeed 0.19.8: param_groups_fp16_flat_cpu_memory; torch: CPUOffloadPolicy)"
PAGED = "managed memory, and what a checkpoint holds of it while that is read (bitsandbytes 0.50, get_paged, load_state_dict)"
SWAPPED = "page-locked buffers between device and disk (deepspeed 0.19.8, runtime/swap_tensor)"


def compute_host_memory(shape: Shape, run: Execution, static: StaticMemory | None) -> tuple[CostItem, ...]:
    """GiB of one node's host memory at its fullest, all processes of the run on it together."""
    processes = run.per_node if run.mode == "train" else 1
    items = [
        CostItem(
            name="interpreter",
            value=(c.PROCESS_GIB + c.ACCELERATOR_LIBRARIES_GIB) * processes,
            basis="assumed",
            source="Python, torch, CUDA libraries, per process",
        ),
    ]
    # what is offloaded comes when the model has left for its devices: the fuller of the two moments counts
    loading = compute_loading(shape, run, processes)
    offloaded = [] if static is None else compute_offloaded(shape, run, static, processes)
    items += max(loading, offloaded, key=add_up)
    if run.dataloader_workers:
        workers = c.WORKER_GIB * run.dataloader_workers * processes
        items.append(CostItem(name="data workers", value=workers, basis="assumed", source=c.WORKER_GIB.source))
    return tuple(items)


def add_up(items: list[CostItem]) -> float:
    return sum(item.value for item in items)


def compute_offloaded(shape: Shape, run: Execution, static: StaticMemory, processes: int) -> list[CostItem]:
    items = []
    # all processes of a node together: the model's are divided over the nodes
    owned = static.trained / run.nodes
    if run.offload_optimizer == "cpu":
        states = static.state_bytes / run.nodes / GIB
        items.append(CostItem(name="offloaded optimizer", value=states, basis="derived", source=STATES))
    if run.offload_optimizer != "none" and (run.sharding.float32_masters or run.offload_params != "none"):
        gradients = owned * count_host_gradient_bytes(run) + processes * compute_staging(shape, run)
        items.append(CostItem(name="offloaded gradients", value=gradients / GIB, basis="derived", source=GRADIENTS))
    if run.offload_params == "cpu":
        weights = static.weight_bytes / run.nodes / GIB
        items.append(CostItem(name="offloaded weights", value=weights, basis="derived", source=WEIGHTS))
    swapped = processes * compute_swap_buffers(run, owned / processes)
    if swapped:
        items.append(CostItem(name="swap buffers", value=swapped / GIB, basis="derived", source=SWAPPED))
    if borrows_states(run):
        states = 2 * processes * static.state_bytes / GIB  # a resumed run reads a copy of them first
        items.append(CostItem(name="paged optimizer states", value=states, basis="derived", source=PAGED))
    if run.checkpoint_offload:
        tokens = run.micro_batch * run.seq_len / (run.cp * run.tp)
        # of each block one tensor, in page-locked memory of the next power of two (ATen/core/CachingHostAllocator.h)
        each = 2.0 ** math.ceil(math.log2(max(tokens * static.block.kept, 1.0)))
        inputs = each * shape.layers / run.pp * processes / GIB
        source = "page-locked copies of block inputs (transformers 5.23, activation_checkpointing_enable; torch's save_on_cpu)"
        items.append(CostItem(name="offloaded activations", value=inputs, basis="derived", source=source))
    return items


def compute_loading(shape: Shape, run: Execution, processes: int) -> list[CostItem]:
    """Before it moves to its device a model is whole in host memory: once per process, once per node under FSDP, only its part
    under ZeRO-3. Served and quantized ones are read onto the device, a shard of the checkpoint at a time."""
    shard = min(c.SHARD_GIB, shape.params * 2 / GIB)
    source = "one shard is read at a time (safetensors)"
    one = CostItem(name="checkpoint shard", value=shard, basis="derived", source=source)
    if run.mode == "train" and run.quant != "none" and run.sharding.by_fsdp:
        packed = compute_stored_bytes(shape, run) / GIB * processes
        source = (
            "each process quantizes into host memory, from where FSDP2 divides (accelerate 1.15, fsdp2_prepare_model)"
        )
        return [one, CostItem(name="model before it moves", value=packed, basis="derived", source=source)]
    if run.mode == "infer" or run.quant != "none":
        return [one]
    if run.sharding.loads == EACH_ITS_SHARD:
        return [CostItem(name=one.name, value=shard * processes, basis=one.basis, source=one.source)]
    model = shape.params * BYTES[run.weights_dtype] / GIB
    # made from its config, every process has a model of its own, whatever the library can share
    once = run.sharding.loads == ONE_OF_A_NODE and not run.from_scratch
    copies = 1 if once else processes / (run.tp * run.pp)
    source = "from_pretrained fills host memory first (transformers docs, models), in each process"
    return [one, CostItem(name="model before it moves", value=model * copies, basis="derived", source=source)]
