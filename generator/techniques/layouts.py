"""Which ways of dividing the devices are worth costing: every one whose parts come out even."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import STRATEGIES

FEW_NODES = 16
"""Up to here every number of nodes is tried; above, powers of two and the whole, which schedulers give, and of each doubling the most
that divide the global batch, with a device for each part of it or a node: 10,000 sequences are none of 128 devices, and 80 of 125."""
STAGES = (2, 4, 8, 16, 32, 64)


def list_data_parallel(case: Case, strategy: str, *, least: int = 2) -> tuple[Layout, ...]:
    """One copy of the whole model a device."""
    return tuple(
        Layout(strategy=strategy, nodes=nodes, per_node=each, replicate=nodes * each)
        for nodes, each in list_device_groups(case)
        if nodes * each >= least and divides_batch(case, nodes * each)
    )


def list_sharded(case: Case, strategy: str, *, least: int = 2) -> tuple[Layout, ...]:
    """States divided over all devices used."""
    return tuple(
        Layout(strategy=strategy, nodes=nodes, per_node=each, shard=nodes * each)
        for nodes, each in list_device_groups(case)
        if nodes * each >= least and divides_batch(case, nodes * each)
    )


def list_sharded_in_node(case: Case, strategy: str) -> tuple[Layout, ...]:
    """States divided over the devices of a node, and every node a copy: the large collectives stay inside (HSDP)."""
    return tuple(
        Layout(strategy=strategy, nodes=nodes, per_node=each, replicate=nodes, shard=each)
        for nodes, each in list_device_groups(case)
        if nodes > 1 and each > 1 and divides_batch(case, nodes * each)
    )


def list_split(
    case: Case, strategy: str, *, tp: bool = False, pp: bool = False, sequence_form: str | None = None
) -> Iterator[Layout]:
    """Tensor and sequence parts inside a node, stages across all, and copies of the whole on what is left."""
    for nodes, each in list_device_groups(case):
        total = nodes * each
        for t in list_parts(each) if tp else (1,):
            for s in list_parts(each // t) if sequence_form else (1,):
                for p in [n for n in STAGES if n <= min(total // (t * s), case.model.layers)] if pp else (1,):
                    copies, rest = divmod(total, t * p * s)
                    if rest or not divides_batch(case, copies):
                        continue
                    sharded_states = STRATEGIES[strategy].divides_states
                    yield Layout(
                        strategy=strategy if copies > 1 or s > 1 else "none",
                        nodes=nodes,
                        per_node=each,
                        replicate=1 if sharded_states else copies,
                        shard=copies if sharded_states else 1,
                        tp=t,
                        pp=p,
                        cp=s,
                        sequence_form=sequence_form if s > 1 else None,
                    )


def list_parts(count: int) -> tuple[int, ...]:
    return tuple(n for n in range(2, count + 1) if count % n == 0)


@lru_cache(maxsize=64)
def _list_groups(nodes: int, each: int, batch: int) -> tuple[tuple[int, int], ...]:
    inside = [(1, n) for n in range(1, each + 1)]
    return (*inside, *((n, each) for n in list_node_counts(nodes, each, batch)))


def list_node_counts(nodes: int, each: int, batch: int) -> list[int]:
    """Numbers of nodes of ``each`` devices to try, from 2 on; ``batch`` is the global batch."""
    if nodes <= FEW_NODES:
        return list(range(2, nodes + 1))
    most: dict[tuple[int, bool], int] = {}
    for n in range(2, nodes + 1):
        if batch % n == 0:  # ascending: what is kept is the most of each doubling
            most[n.bit_length(), False] = n
            if batch % (n * each) == 0:
                most[n.bit_length(), True] = n
    return sorted({*(1 << k for k in range(1, nodes.bit_length())), *most.values(), nodes})


def list_device_groups(case: Case) -> tuple[tuple[int, int], ...]:
    """(nodes, devices in each): some of one node, or all of several. Processes on CPUs are as many as were asked for."""
    if case.on_cpu:
        return ((case.nodes, case.devices_per_node),)
    batch = case.workload.global_batch if case.workload.mode == "train" else 1  # nothing is divided in serving
    return _list_groups(case.nodes, case.devices_per_node, batch)


def divides_batch(case: Case, ways: int) -> bool:
    """Whether every copy gets the same number of sequences: the global batch is the user's and stays as it is."""
    return case.workload.mode == "infer" or case.workload.global_batch % ways == 0


def explain_one_device(case: Case) -> str | None:
    """Why nothing can be divided, or ``None``."""
    if case.portable:
        return "the machine is not known"
    if case.on_cpu and case.devices == 1:
        return "there is one CPU: it is used by one process with all its threads"
    if case.devices == 1:
        return "there is one device"
    return None


def explain_uneven(case: Case, layouts: tuple[Layout, ...]) -> str | None:
    """The obstacle of a technique that finds no way to divide the devices."""
    if layouts:
        return None
    return (
        f"a global batch of {case.workload.global_batch} cannot be divided evenly "
        f"over any of 2 to {case.devices} devices"
    )
