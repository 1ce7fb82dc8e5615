"""How train.py is started in several processes, one a device, and what is said of it in accelerate.yaml."""

from __future__ import annotations

from typing import Any

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.saving import STATE_BYTES, choose_grace_seconds, compute_save_seconds
from generator.case.stacks import parse_version
from generator.case.strategies import MESH_AXES, STRATEGIES, TRAINER, find_skeletons
from generator.model.buffers import SAVED_BUFFERS
from generator.techniques.edits import Code, Edits, make_argument, merge_edits

PORT = 29500
"""torchrun's and Accelerate's default."""
WAIT = "read_timeout=600"
"""Seconds until the first node has begun: as long as all nodes may take to join (join_timeout's default). Of itself torch 2.13 gives up
after 60, and the image of one pod is pulled later than another's."""


def find_grace_seconds(case: Case) -> int:
    """How long a launcher waits for the last save after SIGTERM. torchrun's own 30 s end in a kill in the middle of it."""
    trained = case.model.params if case.workload.train == "full" else 0  # adapters are saved in no time
    return choose_grace_seconds(
        compute_save_seconds(STATE_BYTES * trained, case.hardware, count_writing_nodes(case.layout))
    )


def count_writing_nodes(layout: Layout) -> int:
    """On which a checkpoint's bytes are written and hashed: all, where each process saves its part (parallel.py, hash_parts)."""
    return layout.nodes if STRATEGIES[layout.strategy].by_fsdp or is_by_loop(layout) else 1


def launch_with_torchrun(case: Case) -> tuple[str, ...]:
    """One node by itself, whether its name has an address or not; several meet at ``$MASTER_ADDR``, where the first of them runs."""
    layout = case.layout
    each = ("--nproc-per-node", str(layout.per_node), "--shutdown-timeout", str(find_grace_seconds(case)))
    each += ("--numa-binding=node",) if explain_numa_binding(case) else ()
    if layout.nodes == 1:
        return ("torchrun", "--standalone", "--local-addr=localhost", *each)
    meeting = ("--rdzv-backend", "c10d", "--rdzv-conf", WAIT, "--rdzv-endpoint", f"$MASTER_ADDR:{PORT}")
    return ("torchrun", "--nnodes", str(layout.nodes), *each, *meeting)


def explain_numa_binding(case: Case) -> str | None:
    """Why each process should keep to the CPUs near its GPU; ``None`` where there is one NUMA node, or nobody read where the GPUs are.

    torch 2.13 (torch/numa/binding.py) asks CUDA where a GPU is, and goes on without where that fails. Processes on a CPU have no GPU.
    """
    near = {board.numa_node for board in case.hardware.boards if board.numa_node is not None}
    if case.explain_missing("numa-binding") or case.layout.per_node < 2 or len(near) < 2:
        return None
    return (
        f"the GPUs are near {len(near)} NUMA nodes, and Linux places processes anywhere: each keeps to the CPUs near its GPU "
        "(--numa-binding=node), 1 to 10 % by PyTorch's documentation"
    )


def launch_with_accelerate(layout: Layout) -> tuple[str, ...]:
    """The rest is in accelerate.yaml."""
    words = ("accelerate", "launch", "--config_file", "accelerate.yaml")
    if layout.nodes == 1:
        return words
    return (*words, "--rdzv_conf", WAIT, "--main_process_ip", "$MASTER_ADDR")


def is_by_accelerate(layout: Layout) -> bool:
    """Whether Accelerate shards the model (FSDP2), told by accelerate.yaml."""
    return STRATEGIES[layout.strategy].by_fsdp and not layout.at_load and not is_by_loop(layout)


def is_by_loop(layout: Layout) -> bool:
    """Whether the project trains with a loop of its own: the Trainer does not run the layout, or does not save it."""
    sizes = {size: getattr(layout, size) for size in MESH_AXES}
    return TRAINER not in find_skeletons(layout.strategy, layout.sequence_form, sizes)


def is_by_deepspeed(layout: Layout) -> bool:
    return STRATEGIES[layout.strategy].by_deepspeed


READ_ONCE = make_argument(
    "device_map",
    Code('None if args.local_process_index == 0 else "meta"'),
    "one process of a node reads, the others are given theirs",
)
"""templates/fragments/read_once.py has the other half"""


def make_fsdp_edits(case: Case, *, reshard: bool) -> Edits:
    """accelerate.yaml for FSDP2, HSDP where there are copies, and the command that reads it."""
    layout = case.layout
    sharding: dict[str, Any] = {
        "fsdp_config.fsdp_version": 2,
        "fsdp_config.fsdp_reshard_after_forward": reshard,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_config.fsdp_cpu_ram_efficient_loading": True,
        "fsdp_config.fsdp_sync_module_states": True,
    }
    if layout.replicate > 1:
        sharding |= {
            "parallelism_config.parallelism_config_dp_replicate_size": layout.replicate,
            "parallelism_config.parallelism_config_dp_shard_size": layout.shard,
        }
    launched = Edits(
        launcher=launch_with_accelerate(layout),
        accelerate=tuple((describe_processes(layout) | sharding).items()),
        # Accelerate's launcher has no flag for the first
        environment=(("PET_SHUTDOWN_TIMEOUT", str(find_grace_seconds(case))), *restrict_links(case)),
    )
    buffers = keep_saved_buffers() if case.model.model_type in SAVED_BUFFERS else Edits()
    return merge_edits([("launch", launched), ("reading", make_reading_edits(case)), ("buffers", buffers)])


def make_reading_edits(case: Case) -> Edits:
    """One process of a node reads the weights, the first of all draws random ones. What is packed as it is read each has."""
    if case.workload.from_scratch:
        return Edits(imports=("from drawn_weights import draw_once",), fragments=("drawn_weights", "read_once"))
    if case.workload.train == "qlora":
        return Edits()
    return Edits(
        imports=("from read_once import hold_places",),
        fragments=("read_once",),
        model_arguments=(READ_ONCE,),
        after_model=("hold_places(model)",),
    )


def keep_saved_buffers() -> Edits:
    return Edits(
        imports=("from kept_buffers import keep_buffers",),
        fragments=("kept_buffers",),
        after_trainer=("keep_buffers(trainer)",),
    )


def describe_processes(layout: Layout) -> dict[str, Any]:
    meeting = {
        "machine_rank": 0,  # of all: c10d gives out the ranks
        "main_process_port": PORT,
        "rdzv_backend": "c10d",
        "same_network": False,  # else Accelerate gives c10d no endpoint
    }
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": layout.nodes,
        "num_processes": layout.devices,
        **(meeting if layout.nodes > 1 else {}),
        "use_cpu": False,
    }


def restrict_links(case: Case) -> tuple[tuple[str, str], ...]:
    """What NCCL must leave out of what it finds."""
    ports = choose_ports(case)
    return (*restrict_peers(case), *((("NCCL_IB_HCA", "=" + ",".join(ports)),) if ports else ()))


def choose_ports(case: Case) -> tuple[str, ...]:
    """Those of the faster kind, where a node has active ports of InfiniBand and of RoCE: NCCL takes all of them
    (https://github.com/NVIDIA/nccl/issues/1412), and a port of one kind reaches none of the other. As NCCL_IB_HCA names them."""
    if case.layout.nodes == 1 or case.vendor.backend != "nccl":
        return ()
    rates: dict[str, float] = {}
    active = [p for p in case.hardware.network if p.kind in RDMA and p.state in (None, "active")]
    for port in active:
        rates[port.kind] = rates.get(port.kind, 0.0) + (port.rate_bytes_per_s or 0.0)
    if len(rates) < 2:
        return ()
    fastest = max(sorted(rates), key=rates.__getitem__)
    return tuple(port.name.replace("/", ":") for port in active if port.kind == fastest)


RDMA = ("infiniband", "roce")


def explain_ports(case: Case) -> str | None:
    """Why NCCL is told its ports."""
    chosen = choose_ports(case)
    if not chosen:
        return None
    kinds = sorted({p.kind for p in case.hardware.network if p.kind in RDMA and p.state in (None, "active")})
    return (
        f"active ports are of {' and '.join(kinds)}: NCCL would take all, and what is on one does not reach the other. "
        f"It is told those that are faster together ({len(chosen)}: NCCL_IB_HCA)"
    )


def restrict_peers(case: Case) -> tuple[tuple[str, str], ...]:
    """NCCL must leave out what the links of GeForce 40 boards cannot do under older drivers; Accelerate stops without it
    (accelerate.utils.environment.check_cuda_p2p_ib_support)."""
    driver = case.hardware.software.driver
    if "RTX 40" not in case.device.name or driver is None or case.layout.devices < 2:
        return ()
    if parse_version(driver) >= P2P_DRIVER:
        return ()
    return (("NCCL_P2P_DISABLE", "1"), ("NCCL_IB_DISABLE", "1"))


P2P_DRIVER = (550, 40, 7)
