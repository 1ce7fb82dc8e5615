"""C. Parallelism (R201 to R223): which form divides the work, and how. Planned forms are compared by what they would cost."""

from __future__ import annotations

from dataclasses import replace

from making import H100, T4, gpu, llama

from generator.case.workload import Workload
from generator.decide.device_group import choose_case
from generator.emit.parallel import select_visible_devices
from hwdetect.spec import parse_spec
from hwdetect.types import Hardware
from rules.table import (
    NVME,
    RTX_4090,
    Case,
    Rule,
    both,
    chosen,
    costed,
    driven,
    error,
    first,
    joined,
    laid_out,
    layouts,
    mixture,
    on,
    pin,
    plan,
    refused,
    seconds,
    tiny,
    without,
    written,
)

LARGE_HOST = {"host_gib": 4096}
FOUR = joined(on(devices=4))
FAST, SLOW = (joined(on(H100, llama(), devices=8, **LARGE_HOST), kind) for kind in ("nvlink", "sys"))
ADAPTERS = joined(on(H100, llama(), devices=4, train="lora"))
SHARDED = ("fsdp2", "fsdp2-no-reshard", "zero3", "hsdp")
STAGES = ("pipeline", "pipeline-ddp", "pipeline-fsdp2")
PARTS = ("tensor", "tensor-fsdp2")
IN_NODE = (*SHARDED[:3], *STAGES, *PARTS)
LLAMA_70B = llama(hidden=8192, layers=80, heads=64, kv_heads=8, ffn=28672)
NODES = on(H100, LLAMA_70B, devices=8, nodes=8, global_batch=512, **LARGE_HOST)
INFINIBAND, ETHERNET = joined(NODES, network=400e9), joined(NODES, network=3e9)
HUGE_LAYERS = llama(hidden=16384, layers=2, heads=128, kv_heads=8, ffn=53248, vocab=32000)
GPU_16 = gpu("9.0", 16, 989, 3.35e12, "a 16 GiB GPU")
WIDE = joined(on(GPU_16, HUGE_LAYERS, devices=8, global_batch=8, seq_len=256))
WIDE_NODES = joined(on(GPU_16, HUGE_LAYERS, devices=8, nodes=2, global_batch=8, seq_len=256), network=400e9)
LONG = {"train": "lora", "devices": 8, "seq_len": 8192, "global_batch": 1}
RAGGED = {"task": "sft", "train": "lora", "fill_shares": (0.05, 0.1, 0.15, 0.2, 0.6)}
MIXTURE = joined(on(H100, mixture(8), devices=8, nodes=2, global_batch=64, **LARGE_HOST), network=400e9)


def machine(hardware: Hardware, *pins: str) -> Case:
    return pin(choose_case(hardware, tiny(), Workload(seq_len=512, global_batch=12)), *pins)


def mixed() -> Hardware:
    """Three boards, the middle one of another kind."""
    three, other = parse_spec("3xrtx-4090"), parse_spec("1xrtx-3090")
    boards = tuple(replace(other.boards[0], index=b.index) if b.index == 1 else b for b in three.boards)
    return replace(three, boards=boards)


def told_to_use(places: str | None):
    """CUDA_VISIBLE_DEVICES of the command line; ``None`` where all are used."""
    return lambda of: select_visible_devices(plan(of)) == places


def fits(*forms: str):
    return lambda of: all(seconds(of, form) < float("inf") for form in forms)


def one_of_these_at_least(*forms: str):
    return lambda of: any(seconds(of, form) < float("inf") for form in forms)


def copies_are_nodes(of: Case) -> bool:
    found = layouts(of, "hsdp")
    return bool(found) and all(x.replicate == x.nodes > 1 and x.shard == x.per_node for x in found)


def enough_chunks(of: Case) -> bool:
    """As many micro-batches as stages, and the batch is theirs: micro-batch x chunks x copies."""
    run = plan(of).best.execution
    whole = run.micro_batch * run.accumulation * run.dp == of.workload.global_batch
    return run.pp > 1 and whole and run.accumulation >= run.pp


RULES = (
    Rule(
        id="R201",
        words="one device where others bring less than the exchange with them costs",
        look=chosen("parallelism", "single"),
        takes=joined(on(RTX_4090, tiny(vocab=128000), devices=4, seq_len=32, global_batch=4), "sys"),
        leaves=(FOUR, joined(on(RTX_4090, devices=4))),
    ),
    Rule(
        id="R202",
        words="what fits one device is copied (DDP); ZeRO-1 and FSDP are costed beside it",
        look=both(chosen("parallelism", "ddp"), costed("parallelism", "zero1"), costed("parallelism", "fsdp2")),
        takes=(ADAPTERS, joined(on(devices=4, train="lora"))),
        leaves=(FAST, joined(on(train="lora"))),
    ),
    Rule(
        id="R203",
        words="states that do not fit one device are divided: FSDP2 or ZeRO",
        look=both(chosen("parallelism", *SHARDED, "zero1", "zero2"), without(fits("ddp"))),
        takes=(FAST, joined(on(H100, llama(), devices=4))),
        leaves=ADAPTERS,
    ),
    Rule(
        id="R204",
        words="a layer too large for one device is divided itself; a pipeline alone does not help",
        look=both(one_of_these_at_least(*PARTS), without(one_of_these_at_least("ddp", *STAGES[:2], "fsdp2"))),
        takes=WIDE,
        leaves=(FAST, SLOW),
    ),
    Rule(
        id="R205",
        words="tensor parts stay inside a node",
        look=without(laid_out("tensor", tp=8)),
        takes=(joined(on(devices=4, nodes=2)), joined(on(devices=2, nodes=4))),
        leaves=joined(on(devices=8)),
    ),
    Rule(
        id="R206",
        words="over fast links, sharding before tensor parts and stages",
        look=first(SHARDED, *IN_NODE),
        takes=FAST,
        leaves=SLOW,
    ),
    Rule(
        id="R207",
        words="over slow links, stages before sharding and tensor parts",
        look=first(STAGES, *IN_NODE),
        takes=SLOW,
        leaves=FAST,
    ),
    Rule(
        id="R208",
        words="one process sees one GPU, or the Trainer would start DataParallel by itself",
        look=told_to_use("0"),
        takes=machine(parse_spec("4xrtx-4090"), "parallelism=single"),
        leaves=(machine(parse_spec("4xrtx-4090"), "parallelism=ddp"), machine(parse_spec("1xrtx-4090"))),
    ),
    Rule(
        id="R209",
        words="between nodes: sharding over a fast network; tensor parts, stages and copies over a slow one",
        look=first(("tensor-pipeline", *STAGES), *SHARDED, "tensor-pipeline", *STAGES),
        takes=ETHERNET,
        leaves=INFINIBAND,
    ),
    Rule(
        id="R210",
        words="HSDP: as many copies as nodes, each sharded over its node",
        look=copies_are_nodes,
        takes=(joined(on(devices=8, nodes=2)), joined(on(devices=4, nodes=4))),
        leaves=joined(on(devices=8)),
    ),
    Rule(
        id="R211",
        words="long sequences: Ulysses where all heads can be divided, else context parallelism",
        look=first(("ulysses",), "ulysses", "context", "context-fsdp2"),
        takes=joined(on(H100, llama(kv_heads=32), **LONG | {"seq_len": 24576})),  # the host keeps pace
        leaves=(
            joined(on(H100, llama(hidden=3584, heads=28, kv_heads=28), **LONG)),
            joined(on(H100, llama(hidden=3712, heads=29, kv_heads=29), **LONG)),
        ),
    ),
    Rule(
        id="R212",
        words="a mixture too large for a device: its experts are divided",
        look=first(("expert", "expert-fsdp2"), "expert", "expert-fsdp2", "fsdp2", "zero3"),
        takes=MIXTURE,
        leaves=(FAST, INFINIBAND),
    ),
    Rule(
        id="R213",
        words="no second dimension while one suffices",
        look=first(SHARDED, *SHARDED, *PARTS, "tensor-pipeline", "context", "context-fsdp2"),
        takes=(FAST, INFINIBAND),
        leaves=WIDE_NODES,
    ),
    Rule(
        id="R214",
        words="tensor parts beside stages, or beside copies, need four devices",
        look=both(
            refused("parallelism=tensor-pipeline", "four devices"),
            without(lambda of: any(x.tp > 1 and x.dp > 1 for x in layouts(of, "tensor-fsdp2"))),
        ),
        takes=(joined(on(devices=2)), joined(on(devices=3, global_batch=33))),
        leaves=(FOUR, joined(on(devices=8))),
    ),
    Rule(
        id="R215",
        words="a pipeline gets as many micro-batches as stages or more",
        look=enough_chunks,
        takes=(pin(SLOW, "parallelism=pipeline"), pin(FOUR, "parallelism=pipeline")),
        leaves=pin(joined(on(devices=4, global_batch=1)), "parallelism=pipeline"),
    ),
    Rule(
        id="R218",
        words="states alone, or to a disk: only DeepSpeed offloads so; FSDP2 offloads all to the host",
        look=error(),
        takes=(
            pin(on(devices=4, disks=NVME), "parallelism=fsdp2", "offload=all-nvme"),
            pin(on(devices=4), "parallelism=fsdp2", "offload=optimizer-cpu"),
        ),
        leaves=(
            pin(on(devices=4, disks=NVME), "parallelism=zero3", "offload=all-nvme"),
            pin(on(devices=4), "parallelism=zero2", "offload=optimizer-cpu"),
            pin(on(devices=4), "parallelism=fsdp2", "offload=all-cpu"),
        ),
    ),
    Rule(
        id="R219",
        words="FSDP's checkpoints are written shard by shard",
        look=lambda of: written(of, "accelerate").get("fsdp_config.fsdp_state_dict_type") == "SHARDED_STATE_DICT",
        takes=(pin(FOUR, "parallelism=fsdp2"), pin(joined(on(devices=4, nodes=2)), "parallelism=hsdp")),
        leaves=(pin(FOUR, "parallelism=ddp"), pin(FOUR, "parallelism=zero3")),
    ),
    Rule(
        id="R220",
        words="GeForce 40 boards under old drivers: NCCL leaves out what they cannot do",
        look=lambda of: {("NCCL_P2P_DISABLE", "1"), ("NCCL_IB_DISABLE", "1")} <= set(plan(of).edits.environment),
        takes=tuple(
            pin(driven(on(RTX_4090, devices=2), "550.40.6"), f"parallelism={name}")
            for name in ("ddp", "fsdp2", "zero3")
        ),
        leaves=(
            pin(driven(on(RTX_4090, devices=2), "550.40.07"), "parallelism=ddp"),
            pin(driven(on(devices=2), "535.1"), "parallelism=ddp"),
            driven(on(RTX_4090), "535.1"),
        ),
    ),
    Rule(
        id="R223",
        words="texts of unequal length are dealt out, so that processes have as many tokens at a time",
        look=lambda of: "balanced_processes" in plan(of).edits.fragments,
        takes=on(H100, llama(), devices=8, global_batch=64, **RAGGED),
        leaves=(on(global_batch=64, **RAGGED), pin(on(T4, devices=8, global_batch=64, **RAGGED), "packing=padded")),
    ),
    Rule(
        id="R221",
        words="boards of another kind are left out, on the command line",
        look=told_to_use("0,2"),
        takes=machine(mixed(), "parallelism=ddp"),
        leaves=machine(parse_spec("3xrtx-4090"), "parallelism=ddp"),
    ),
)
