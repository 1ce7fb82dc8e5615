"""Host memory of one node: for each process interpreter, loading and workers; pinned copies and offloaded states once."""

from __future__ import annotations

import math

from generator.case.strategies import EACH_ITS_SHARD, ONE_OF_A_NODE
from generator.cost import constants as c
from generator.cost.deepspeed import compute_staging, compute_swap_buffers, count_host_gradient_bytes
from generator.cost.engines import find_engine
from generator.cost.estimate import GIB, CostItem
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.static_memory import StaticMemory, borrows_states
from generator.cost.weights import compute_stored_bytes, count_packed_params, place_weights

SOURCES = {
    "interpreter": "Python, torch, CUDA libraries, per process",
    "data workers": c.WORKER_GIB.source,
    "offloaded optimizer": "float32 masters and two moments (deepspeed 0.19.8: single_partition_of_fp32_groups, fp32_partitioned_groups_flat)",
    "offloaded gradients": "float32 gradients, their sums, and staging buffers (deepspeed 0.19.8, stage_1_and_2.py and stage3.py; torch FSDP2)",
    "offloaded weights": "the weights' own copy (deepspeed 0.19.8: param_groups_fp16_flat_cpu_memory; torch: CPUOffloadPolicy)",
    "swap buffers": "page-locked buffers between device and disk (deepspeed 0.19.8, runtime/swap_tensor)",
    "paged optimizer states": "managed memory, and what a checkpoint holds of it while that is read (bitsandbytes 0.50, get_paged, load_state_dict)",
    "offloaded activations": "page-locked copies of block inputs (transformers 5.23, activation_checkpointing_enable; torch's save_on_cpu)",
    "checkpoint shard": "one shard is read at a time (safetensors)",
    "model before it moves": "from_pretrained fills host memory first (transformers docs, models), in each process",
}
PACKED = (
    "each process quantizes into host memory, from where FSDP2 divides (accelerate 1.15, fsdp2_prepare_model), and keeps its share of "
    "the packed values there; scales and what is not packed are whole in each"
)
ASSUMED = ("interpreter", "data workers")

HostMemory = dict[str, float]
"""GiB by item"""


def list_host_items(shape: Shape, run: Execution, static: StaticMemory | None) -> tuple[CostItem, ...]:
    """``compute_host_memory``, each item with its source."""
    return tuple(
        CostItem(
            name=name,
            value=gib,
            basis="assumed" if name in ASSUMED else "derived",
            source=PACKED if name == "model before it moves" and packs_on_host(run) else SOURCES[name],
        )
        for name, gib in compute_host_memory(shape, run, static).items()
    )


def compute_host_memory(shape: Shape, run: Execution, static: StaticMemory | None) -> HostMemory:
    """GiB of one node's host memory at its fullest, all processes of the run on it together."""
    processes, beside = count_processes(run)
    # what is offloaded comes when the model has left for its devices: the fuller of the two moments counts
    loading = compute_loading(shape, run, processes)
    offloaded = {} if static is None else compute_offloaded(shape, run, static, processes)
    fuller = max(loading, offloaded, key=lambda held: sum(held.values()))
    held = {
        "interpreter": (c.PROCESS_GIB + c.ACCELERATOR_LIBRARIES_GIB) * processes + c.PROCESS_GIB * beside,
        **fuller,
    }
    if run.dataloader_workers:
        held["data workers"] = c.WORKER_GIB * run.dataloader_workers * processes
    return held


def count_processes(run: Execution) -> tuple[int, int]:
    """Of one node: those that have a device, and those that answer and schedule for them."""
    beside = 0 if run.mode == "train" else find_engine(run.engine).processes_beside
    return run.per_node if run.mode == "train" or beside else 1, beside


def compute_offloaded(shape: Shape, run: Execution, static: StaticMemory, processes: int) -> HostMemory:
    held: HostMemory = {}
    # all processes of a node together: the model's are divided over the nodes
    owned = static.trained / run.nodes
    if run.offload_optimizer == "cpu":
        held["offloaded optimizer"] = static.state_bytes / run.nodes / GIB
    if run.offload_optimizer != "none" and (run.sharding.float32_masters or run.offload_params != "none"):
        gradients = owned * count_host_gradient_bytes(run) + processes * compute_staging(shape, run)
        held["offloaded gradients"] = gradients / GIB
    if run.offload_params == "cpu":
        held["offloaded weights"] = static.weight_bytes / run.nodes / GIB
    swapped = processes * compute_swap_buffers(run, owned / processes)
    if swapped:
        held["swap buffers"] = swapped / GIB
    if borrows_states(run):  # a resumed run reads a copy of them first
        held["paged optimizer states"] = 2 * processes * static.state_bytes / GIB
    if run.checkpoint_offload:
        tokens = run.micro_batch * run.seq_len / (run.cp * run.tp)
        # of each block one tensor, in page-locked memory of the next power of two (ATen/core/CachingHostAllocator.h)
        each = 2.0 ** math.ceil(math.log2(max(tokens * static.block.kept, 1.0)))
        held["offloaded activations"] = each * shape.layers / run.pp * processes / GIB
    return held


def packs_on_host(run: Execution) -> bool:
    """Whether a base is quantized in host memory, and divided from there."""
    return run.mode == "train" and run.quant != "none" and run.sharding.by_fsdp


def compute_packed_loading(shape: Shape, run: Execution, processes: int) -> float:
    """Bytes of a node: of the packed values each process writes only those that FSDP2 will give it (packed_on_gpu.py of a project),
    the rest is whole in each of them."""
    values = count_packed_params(shape, run) * c.NF4_VALUE_BYTES
    return processes * (compute_stored_bytes(shape, run) - values + values / run.shards)


def reads_its_parts(run: Execution) -> bool:
    """Whether the loop's processes read their parts of each weight alone (Transformers' DistributedConfig), new weights too: the
    first process has written those. Stages open the whole model, and copies that divide sequences alone have all of it."""
    divides = run.tp > 1 or run.ep > 1 or (run.cp > 1 and run.sharding.by_fsdp)
    return run.mode == "train" and run.own_loop and run.pp == 1 and divides


def compute_loading(shape: Shape, run: Execution, processes: int) -> HostMemory:
    """Before it moves to its device a model is whole in host memory: once per process, once per node under FSDP, only its part
    under ZeRO-3. Served and quantized ones are read onto the device, a shard of the checkpoint at a time."""
    shard = min(c.SHARD_GIB, shape.params * 2 / GIB)
    if packs_on_host(run):
        return {"checkpoint shard": shard, "model before it moves": compute_packed_loading(shape, run, processes) / GIB}
    if run.mode == "infer" and (host := place_weights(shape, run).host):
        return {"checkpoint shard": shard, "offloaded weights": run.pp * host / GIB}
    if run.mode == "infer" or run.quant != "none":
        return {"checkpoint shard": shard}
    if run.sharding.loads == EACH_ITS_SHARD or reads_its_parts(run):
        return {"checkpoint shard": shard * processes}
    model = shape.params * BYTES[run.weights_dtype] / GIB
    # a stage maps the files into memory, and keeps its part
    once = run.sharding.loads == ONE_OF_A_NODE and run.pp == 1
    copies = 1 if once else processes / (run.tp * run.pp)
    return {"checkpoint shard": shard, "model before it moves": model * copies}
