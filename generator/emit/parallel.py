"""What plan.json says of several processes: how they are started, what they must find, and their configuration files."""

from __future__ import annotations

import math
from typing import Any

from generator.case.case import Case
from generator.case.devices import find_board_vendor, is_mig_instance
from generator.case.layout import Layout
from generator.case.strategies import SEQUENCE_FORMS, STRATEGIES
from generator.cost.links import choose_devices
from generator.cost.shape import build_shape
from generator.cost.stages import split_layers
from generator.decide.plan import Plan
from generator.emit.plan_document import ABSENT, ExpectedRecord, LoopRecord, ParallelRecord
from generator.techniques.launch import is_by_loop
from generator.techniques.looped import divides_tokens
from hwdetect.cloud import list_instances


def describe_processes(plan: Plan) -> ParallelRecord | None:
    """``None`` where train.py is one process. ``expected`` is what parallel.py compares the prepared model with."""
    if not plan.edits.launcher:
        return None
    case, layout = plan.case, plan.best.layout
    return ParallelRecord(
        strategy=layout.strategy,
        nodes=layout.nodes,
        per_node=layout.per_node,
        world_size=layout.devices,
        cpus_per_task=count_task_cpus(case, layout),
        launcher=plan.edits.launcher,
        at_load=layout.at_load,
        parameter_count_attribute=name_parameter_count(plan),
        expected=expect_wrapping(case, layout, ("fsdp_config.fsdp_offload_params", True) in plan.edits.accelerate),
        deepspeed=nest_keys(plan.edits.deepspeed),
        accelerate=nest_keys(plan.edits.accelerate),
        loop=describe_loop(case, layout) or ABSENT,
    )


def describe_loop(case: Case, layout: Layout) -> LoopRecord | None:
    """How loop.py's model is divided; ``None`` where the Trainer runs and saves the layout."""
    if not is_by_loop(layout):
        return None
    sharded = STRATEGIES[layout.strategy].divides_states
    tokens = "token_parts" if layout.tp > 1 and divides_tokens(case) else None
    vocabulary = "vocabulary_parts" if layout.tp > 1 else None
    if layout.pp > 1:
        shape = build_shape(case.model, case.workload.task, 0)
        layers = split_layers(shape.layers, layout.pp, shape.head_params / shape.block_params)
        sizes = {"layers": layers, "copies": layout.dp, "sharded": sharded}
        more = {"ways": layout.tp} if layout.tp > 1 else {}
        return LoopRecord(
            division="division/pipeline", attention=None, tokens=tokens, vocabulary=vocabulary, sizes={**sizes, **more}
        )
    if layout.sequence_form is not None:
        heads = SEQUENCE_FORMS[layout.sequence_form].exchanges_heads
        attention = f"sequence_attention/{'ulysses' if heads else 'context'}"
        sizes = {"parts": layout.cp, "copies": layout.dp, "sharded": sharded}
        return LoopRecord(division="division/sequence", attention=attention, tokens=None, vocabulary=None, sizes=sizes)
    named = {
        "tp_size": layout.tp,
        "fsdp_size": layout.shard,
        "dp_replicate_size": layout.replicate,
        "ep_size": layout.ep,
    }
    sizes = {name: size for name, size in named.items() if size > 1}
    return LoopRecord(division="division/sharded", attention=None, tokens=tokens, vocabulary=vocabulary, sizes=sizes)


def expect_division(layout: Layout, loop: LoopRecord) -> tuple[str, ...]:
    """The axes over which division.py must find the model divided, each with its size."""
    if loop.attention is not None or layout.pp > 1:
        named = {"parts": layout.cp, "stages": layout.pp, "tp": layout.tp}
        named["fsdp"] = layout.devices // (layout.pp * layout.tp) if loop.sizes["sharded"] else 1
    else:
        experts = layout.shard * layout.tp // layout.ep if layout.ep > 1 else 1
        named = {"ep": layout.ep, "efsdp": experts, "fsdp": layout.shard, "tp": layout.tp}
    return tuple(sorted(f"{name} {size}" for name, size in named.items() if size > 1))


def count_task_cpus(case: Case, layout: Layout) -> int | None:
    """Of a node: of its accelerators' host the share that the job's accelerators are, of CPUs those of each process. ``None`` for all
    of whole nodes whose CPUs nobody named: Slurm refuses a job that asks for more than a node has; and where it has no name for the
    accelerators, so that no job can ask for some of them."""
    hardware = case.hardware
    assumed = any(note.who == "spec" and note.field == "cpu" for note in hardware.notes)
    accelerators = len(hardware.accelerators)
    if (assumed and layout.per_node == accelerators) or hardware.cpu.budget is None:
        return None
    if case.on_cpu:
        return hardware.cpu.budget * layout.per_node
    if case.vendor.kubernetes is None:
        return None
    if assumed:
        return math.ceil(find_least_cpus(case.device.id) * layout.per_node)
    return max(1, hardware.cpu.budget * layout.per_node // max(accelerators, layout.per_node))


def find_least_cpus(device: str) -> float:
    """For each of such devices, of all machines with them that are rented; of a device that nobody rents out, of all machines."""
    shares = {(i.device == device, i.vcpus / i.devices) for i in list_instances() if i.devices}
    return min((each for is_same, each in shares if is_same), default=min(each for _, each in shares))


def name_parameter_count(plan: Plan) -> str | None:
    """The attribute that holds the elements of a weight that DeepSpeed divides as it is loaded; ``None``: ``numel()`` does."""
    row = STRATEGIES[plan.best.layout.strategy]
    return "ds_numel" if row.by_deepspeed and row.divides_weights and plan.case.workload.train == "full" else None


def expect_wrapping(case: Case, layout: Layout, offloaded: bool) -> ExpectedRecord:
    vendor = case.vendor
    common: dict[str, Any] = {"world_size": layout.devices, "backend": vendor.backend, "device": vendor.torch_device}
    row, loop = STRATEGIES[layout.strategy], describe_loop(case, layout)
    if loop is not None:
        return ExpectedRecord(wrapper="loop", divided=expect_division(layout, loop), **common)
    if row.by_deepspeed:
        return ExpectedRecord(wrapper=row.wrapper, zero_stage=row.deepspeed_stage, shards=layout.shard, **common)
    if row.by_fsdp:
        if offloaded:  # the shards rest in host memory, and their norm is summed there
            common |= {"backend": f"{vendor.torch_device}:{vendor.backend},cpu:gloo", "device": "cpu"}
        copies = layout.replicate > 1
        return ExpectedRecord(
            wrapper=row.wrapper,
            sharded="all",
            mesh=(f"({layout.replicate}, {layout.shard})" if copies else f"({layout.shard},)",),
            placements=("(Replicate(), Shard(dim=0))" if copies else "(Shard(dim=0),)",),
            **common,
        )
    return ExpectedRecord(wrapper=row.wrapper, **common)


def nest_keys(settings: tuple[tuple[str, Any], ...]) -> dict:
    """{"a.b": 1} as {"a": {"b": 1}}, plain values first."""
    nested: dict = {}
    for key, value in sorted(settings, key=lambda item: "." in item[0]):
        *path, last = key.split(".")
        place = nested
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return nested


def select_visible_devices(plan: Plan) -> str | None:
    """What the variable of the maker must be on the command line, or ``None`` where all devices, or the first of them, are used.

    A training in one process would spread over every GPU it sees (Trainer's DataParallel).
    """
    case, layout = plan.case, plan.best.layout
    if not case.accelerators:
        return None
    boards = {board.index: board for board in case.hardware.boards}
    maker = find_board_vendor(
        next(boards[a.board] for a in case.hardware.accelerators if a.index == case.accelerators[0])
    )
    # the variable numbers the devices of its maker alone: beside a GPU of another's, CUDA's first is still 0
    every = [a for a in case.hardware.accelerators if find_board_vendor(boards[a.board]) is maker]
    if any(is_mig_instance(a, boards[a.board]) for a in every):  # chosen by its UUID, not by its number
        return None
    numbers = {a.index: number for number, a in enumerate(every)}
    chosen = choose_devices(case.device, case.links, case.devices_per_node, layout.per_node)
    used = [numbers[case.accelerators[place]] for place in chosen]
    first = used == list(range(len(used)))
    if len(used) == len(every) or (first and len(used) > 1 and not case.vendor.sees_all):
        return None
    return ",".join(map(str, used))
