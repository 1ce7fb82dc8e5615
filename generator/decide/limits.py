"""What a server may be asked for, so that it starts and never runs out: how long a context so many sequences at a time may have."""

from __future__ import annotations

from generator.case.case import Case
from generator.case.limits import BATCHED_TOKENS, MEMORY_SHARE, ServingLimits
from generator.cost.costmodel import CostModel
from generator.cost.engines import find_engine
from generator.cost.estimate import GIB
from generator.cost.execution import Execution
from generator.cost.serving_limits import compute_budget, compute_sequence_bytes
from generator.decide.plan import Plan
from generator.decide.space import HEADROOM_SHARE

STEP = 256
"""Tokens that contexts are counted in: a page of Transformers' and a multiple of vLLM's (their defaults)."""
MOST = 131_072
"""Tokens of context that nobody asked for more than: a limit of what is tried where a model states no positions."""
WAITING_PER_SEQUENCE = 4
LEAST_WAITING = 16
"""Requests that may wait beside those that are computed (ours): a user waits at most five answers long."""


def find_limits(plan: Plan) -> ServingLimits:
    """Of the chosen execution, on one of its copies and for all of them."""
    case, run, cost = plan.case, plan.best.execution, plan.best.cost
    copies, most = plan.best.layout.dp, find_most_positions(case)
    longest = find_longest_context(cost, run, run.micro_batch, most)
    asked = case.workload.seq_len + case.workload.new_tokens
    concurrency = case.workload.concurrency
    frontier = [(n, find_most_sequences(cost, run, n) * copies) for n in list_contexts(asked, most)]
    return ServingLimits(
        max_context=max(longest, asked),
        max_concurrency=concurrency,
        of_one_copy=run.micro_batch,
        max_waiting=max(LEAST_WAITING, WAITING_PER_SEQUENCE * concurrency),
        limited_by="positions of the model" if longest >= most else "memory",
        frontier=tuple((context, sequences) for context, sequences in frontier if sequences),
    )


def find_most_positions(case: Case) -> int:
    return case.model.max_positions or MOST


def list_contexts(asked: int, most: int) -> list[int]:
    """What was asked for, and 1,024, 2,048, … up to all positions."""
    powers = [1 << k for k in range(10, 31)]
    return sorted({min(asked, most), *(n for n in powers if n < most), most})


def fits(cost: CostModel, run: Execution, context: int, sequences: int) -> bool:
    """Whether ``sequences`` of ``context`` tokens, all of them cached, leave the usual headroom; of an engine that takes its share of
    the device at once, whether they fit what that leaves."""
    if find_engine(run.engine).memory_share:
        memory, beside = cost.limit_gib * GIB, cost.context_gib
        budget = compute_budget(cost.shape, run, memory, beside, MEMORY_SHARE, BATCHED_TOKENS, sequences)
        return sequences * compute_sequence_bytes(cost.shape, run, context) <= budget.cache
    filled = run.but(seq_len=max(1, context - run.new_tokens), new_tokens=min(run.new_tokens, context - 1))
    return cost.peak_gib(filled.but(micro_batch=sequences)) <= cost.limit_gib * (1 - HEADROOM_SHARE)


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
