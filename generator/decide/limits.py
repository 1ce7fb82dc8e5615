"""What a server may be asked for, so that it starts and never runs out: how long a context so many sequences at a time may have."""

from __future__ import annotations

import math

from generator.case.case import Case
from generator.case.limits import ServingLimits
from generator.cost.costmodel import CostModel
from generator.cost.engines import find_engine
from generator.cost.execution import Execution
from generator.decide.plan import Plan
from generator.decide.space import find_memory_share, find_usable_gib
from generator.techniques.engines import Engine

STEP = 256
"""Tokens that contexts are counted in: a page of Transformers' and a multiple of vLLM's (their defaults)."""
MOST = 131_072
"""Tokens of context: as far as is tried where a model states no positions and nobody asks for more."""
WAITING_PER_SEQUENCE = 4
LEAST_WAITING = 16
"""Requests that may wait beside those that are computed (ours): a user waits at most five answers long."""


def find_limits(plan: Plan) -> ServingLimits:
    """Of the chosen execution, on one of its copies and for all of them."""
    case, run, cost = plan.case, plan.best.execution, plan.best.cost
    engine = next((t for t in plan.best.members if isinstance(t, Engine)), None)
    copies, most = plan.best.layout.dp, find_most_positions(case, run, engine)
    longest = find_longest_context(cost, run, run.micro_batch, most)
    asked = case.workload.seq_len + case.workload.new_tokens
    concurrency = case.workload.concurrency
    served = max(longest, asked)
    frontier = [(n, find_most_sequences(cost, run, n) * copies) for n in list_contexts(asked, served, most)]
    return ServingLimits(
        max_context=served,
        max_concurrency=concurrency,
        of_one_copy=run.micro_batch,
        max_waiting=max(LEAST_WAITING, WAITING_PER_SEQUENCE * concurrency),
        limited_by=name_limit(case, most) if longest >= most else "memory",
        frontier=tuple((context, sequences) for context, sequences in frontier if sequences),
        memory_share=find_share_of_reported(case, cost, run),
        static_share=find_static_share(cost, run),
        # a step gives each sequence its next token (vllm/config/scheduler.py refuses fewer), or verifies those that are proposed
        batched_tokens=max(find_engine(run.engine).batched_tokens, run.micro_batch * (run.draft_tokens + 1)),
    )


def find_share_of_reported(case: Case, cost: CostModel, run: Execution) -> float:
    """Of all that the runtime reports of a device, which is more than a process gets where the host shares it (then in thousandths)."""
    share = find_memory_share(cost, run)
    if not case.shared_memory_bytes or not case.vendor.reports_shared_memory:
        return share
    return max(0.001, math.floor(1000 * share * case.device_memory_bytes / case.shared_memory_bytes) / 1000)


def find_static_share(cost: CostModel, run: Execution) -> float:
    """Weights and cache, of the memory that is free once context and communicators are there (in thousandths): SGLang leaves the rest
    of it to activations and graphs (0.5.23, mem_cache/kv_cache_configurator.py), the same share for any length of the cache."""
    parts = {item.name: item.value for item in cost.estimate(run).memory}
    before = parts.get("context", 0.0) + parts.get("communicator", 0.0)
    beside = sum(parts.values()) - parts["weights"] - parts.get("kv cache", 0.0)
    static = find_usable_gib(cost, run) - beside
    return max(0.001, math.floor(1000 * static / (cost.limit_gib - before)) / 1000)


def find_most_positions(case: Case, run: Execution, engine: Engine | None) -> int:
    """Of the model; rows of Transformers are attended to whole and turned alike, up to its shortest window, and some engines read
    longer texts otherwise than the model."""
    asked = case.workload.seq_len + case.workload.new_tokens
    positions = case.model.max_positions or max(MOST, asked)
    in_rows = not run.engine and run.cache == "static"
    attends_to_all = in_rows or (engine is not None and not engine.keeps_windows(case.model))
    ends = (case.model.shortest_window if attends_to_all else None, case.model.alike_positions if in_rows else None)
    return min(positions, *(most for most in ends if most)) if any(ends) else positions


def name_limit(case: Case, most: int) -> str:
    if most == case.model.shortest_window:
        return "window of the model's layers"
    return "longer texts are turned otherwise" if most == case.model.alike_positions else "positions of the model"


def list_contexts(asked: int, served: int, most: int) -> list[int]:
    """What was asked for, what the server takes, and 1,024, 2,048, … up to all positions."""
    powers = [1 << k for k in range(10, 31)]
    return sorted({min(asked, most), min(served, most), *(n for n in powers if n < most), most})


def fits(cost: CostModel, run: Execution, context: int, sequences: int) -> bool:
    """Whether ``sequences`` of ``context`` tokens, all of them cached, leave the usual headroom, or keep within the share of the device
    that the engine takes: what a plan is held to."""
    return compute_filled_gib(cost, run, context, sequences) <= find_usable_gib(cost, run)


def compute_filled_gib(cost: CostModel, run: Execution, context: int, sequences: int) -> float:
    """The peak, where ``sequences`` have grown to ``context`` tokens each."""
    filled = run.but(seq_len=max(1, context - run.new_tokens), new_tokens=min(run.new_tokens, context - 1))
    return cost.peak_gib(filled.but(micro_batch=sequences))


def find_longest_context(cost: CostModel, run: Execution, sequences: int, most: int) -> int:
    """The longest that fits, in steps; 0 where not even the shortest does."""
    if fits(cost, run, most, sequences):
        return most
    low, high = 0, max(1, most // STEP)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(cost, run, middle * STEP, sequences) else (low, middle)
    return low * STEP


def find_most_sequences(cost: CostModel, run: Execution, context: int) -> int:
    """The most of ``context`` tokens that fit on one copy; 0 where none does."""
    low, high = 0, 1
    while high <= 4096 and fits(cost, run, context, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(cost, run, context, middle) else (low, middle)
    return low
