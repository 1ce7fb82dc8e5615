"""Host memory of one node: for each process interpreter, loading and workers; pinned copies and offloaded states once."""

from __future__ import annotations

from generator.case.strategies import EACH_ITS_SHARD, ONE_OF_A_NODE
from generator.cost import constants as c
from generator.cost.estimate import GIB, CostItem
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.static_memory import StaticMemory


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
        *compute_loading(shape, run, processes),
    ]
    if run.dataloader_workers:
        workers = c.WORKER_GIB * run.dataloader_workers * processes
        items.append(CostItem(name="data workers", value=workers, basis="assumed", source=c.WORKER_GIB.source))
    if static is not None:
        items += compute_offloaded(shape, run, static, processes)
    return tuple(items)


def compute_offloaded(shape: Shape, run: Execution, static: StaticMemory, processes: int) -> list[CostItem]:
    items = []
    share = 1 / run.nodes  # the states of the whole model are divided over the nodes
    if run.offload_optimizer == "cpu":
        source = c.OFFLOADED_STATE_BYTES.source
        states = static.trained * c.OFFLOADED_STATE_BYTES * share / GIB
        items.append(CostItem(name="offloaded optimizer", value=states, basis="published", source=source))
    if run.offload_params == "cpu":
        weights = compute_pinned_bytes(shape.params, accumulates=run.accumulation > 1) * share / GIB
        source = "pinned copies (memory.rst)"
        items.append(CostItem(name="offloaded weights", value=weights, basis="published", source=source))
    if run.checkpoint_offload:
        inputs = run.micro_batch * run.seq_len * shape.layers * static.block.kept * processes / GIB
        source = "pinned copies of block inputs"
        items.append(CostItem(name="offloaded activations", value=inputs, basis="derived", source=source))
    return items


def compute_pinned_bytes(params: float, *, accumulates: bool) -> float:
    """Page-locked host bytes of ZeRO-3 with its weights offloaded (DeepSpeed docs, memory.rst): 4 bytes per
    parameter whatever is offloaded, 2 for the 16-bit weights, and 2 more for gradients that wait for the next micro-batch."""
    return 6 * params + (2 * params if accumulates else 0)


def compute_loading(shape: Shape, run: Execution, processes: int) -> list[CostItem]:
    """Before it moves to its device a model is whole in host memory: once per process, once per node under FSDP, only its part
    under ZeRO-3. Served and quantized ones are read onto the device, a shard of the checkpoint at a time."""
    shard = min(c.SHARD_GIB, shape.params * 2 / GIB)
    source = "one shard is read at a time (safetensors)"
    one = CostItem(name="checkpoint shard", value=shard, basis="derived", source=source)
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
