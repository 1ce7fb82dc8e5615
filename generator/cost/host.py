"""Host memory of one node: for each process interpreter, loading and workers; pinned copies and offloaded states once."""

from __future__ import annotations

from generator.case.strategies import EACH_ITS_SHARD, ONE_OF_A_NODE
from generator.cost import constants as c
from generator.cost.estimate import GIB, Part
from generator.cost.execution import BYTES, Execution
from generator.cost.formulas import pinned_host
from generator.cost.memory import Static
from generator.cost.shape import Shape

PROCESS_GIB = c.PROCESS_GIB + 2.0
WORKER_GIB = 0.35
SHARD_GIB = 4.7
"""largest shard of a checkpoint that is being read (save_pretrained's usual 5 GB shards)"""


def host_parts(shape: Shape, run: Execution, fixed: Static | None) -> tuple[Part, ...]:
    """GiB of one node's host memory at its fullest, all processes of the run on it together."""
    processes = run.per_node if run.mode == "train" else 1
    parts = [
        Part(
            name="interpreter",
            value=PROCESS_GIB * processes,
            basis="assumed",
            source="Python, torch, CUDA libraries, a process",
        ),
        *_loading(shape, run, processes),
    ]
    if run.dataloader_workers:
        parts.append(
            Part(
                name="data workers",
                value=WORKER_GIB * run.dataloader_workers * processes,
                basis="assumed",
                source="a forked worker with its own interpreter state",
            )
        )
    if fixed is None:
        return tuple(parts)
    share = 1 / run.nodes  # the states of the whole model are divided over the nodes
    if run.offload_optimizer == "cpu":
        offloaded = fixed.trained * 16 * share / GIB
        parts.append(
            Part(
                name="offloaded optimizer",
                value=offloaded,
                basis="published",
                source="DeepSpeed: 16 bytes a parameter on the host (docs memory.rst)",
            )
        )
    if run.offload_params == "cpu":
        pinned = pinned_host(shape.params, offload_params=True, accumulates=run.accumulation > 1) * share
        parts.append(
            Part(name="offloaded weights", value=pinned / GIB, basis="published", source="pinned copies (memory.rst)")
        )
    if run.checkpoint_offload:
        kept = run.micro_batch * run.seq_len * shape.layers * fixed.block.kept * processes
        parts.append(
            Part(
                name="offloaded activations", value=kept / GIB, basis="derived", source="pinned copies of block inputs"
            )
        )
    return tuple(parts)


def _loading(shape: Shape, run: Execution, processes: int) -> list[Part]:
    """Before it moves to its device a model is whole in host memory: once a process, once a node under FSDP (Accelerate's
    cpu_ram_efficient_loading), only its part under ZeRO-3 (zero.Init). Served and quantized ones are read onto the device."""
    shard = min(SHARD_GIB, shape.params * 2 / GIB)
    one = Part(
        name="checkpoint shard", value=shard, basis="derived", source="one shard is read at a time (safetensors)"
    )
    if run.mode == "infer" or run.quant != "none":
        return [one]
    whole = shape.params * BYTES[run.weights_dtype] / GIB
    if run.sharding.loads == EACH_ITS_SHARD:
        return [Part(name=one.name, value=shard * processes, basis=one.basis, source=one.source)]
    shares = run.sharding.loads == ONE_OF_A_NODE and not run.from_scratch
    copies = 1 if shares else processes / (run.tp * run.pp)
    source = "from_pretrained fills host memory first (transformers docs, models), in each process"
    return [one, Part(name="model before it moves", value=whole * copies, basis="derived", source=source)]
