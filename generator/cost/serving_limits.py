"""How many sequences of which length fit beside the weights of a served model, and what ends them: pure arithmetic of bytes.

vLLM's own rule: of ``gpu_memory_utilization`` of the device's memory, what weights, the largest step's activations, graphs and
the context leave is the cache; it is cut into pages, and a sequence has as many as its tokens fill (vllm/v1/worker/gpu_worker.py,
determine_available_memory; v1/core/kv_cache_utils.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from generator.cost.engines import Engine, find_engine
from generator.cost.estimate import GIB
from generator.cost.execution import Execution
from generator.cost.served_memory import compute_sequence_bytes, compute_step_bytes, find_kept_gib
from generator.cost.shape import Shape
from generator.cost.weights import compute_held_bytes

WEIGHTS, CACHE, POSITIONS, SEQUENCES = "weights", "cache", "positions", "sequences"
"""what ends a frontier: nothing is left beside the weights; the cache is full; the model has no more positions; the engine takes no
more sequences"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes of one device, of a model that all ``devices`` of a copy share."""

    usable: float
    weights: float
    activations: float
    beside: float
    """context, graphs, communicators"""

    @property
    def cache(self) -> float:
        return max(0.0, self.usable - self.weights - self.activations - self.beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """``sequences`` of ``context`` tokens, prompt and answer together, may be cached at a time."""

    context: int
    sequences: int
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """Of one copy of the model."""

    budget: Budget
    cached_tokens: int
    """that all pages together hold"""
    frontier: tuple[Point, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that can be served alone."""
        return max((point.context for point in self.frontier if point.sequences), default=0)


def compute_serving_limits(
    shape: Shape,
    run: Execution,
    memory_bytes: float,
    most_positions: int,
    *,
    context_gib: float,
    memory_share: float | None = None,
    batched_tokens: int | None = None,
    most_sequences: int | None = None,
) -> ServingLimits:
    """For contexts of 1,024, 2,048, ... up to ``most_positions``. What is not given is the engine's default."""
    engine = find_engine(run.engine)
    most = engine.most_sequences if most_sequences is None else most_sequences
    budget = compute_budget(shape, run, memory_bytes, context_gib, memory_share, batched_tokens, most)
    frontier = tuple(
        find_point(shape, run, budget.cache, context, most_positions, most) for context in list_contexts(most_positions)
    )
    tokens = count_pages(shape, run, engine, budget.cache) * engine.block_tokens
    return ServingLimits(budget=budget, cached_tokens=tokens, frontier=frontier)


def compute_budget(
    shape: Shape,
    run: Execution,
    memory_bytes: float,
    context_gib: float,
    memory_share: float | None,
    batched_tokens: int | None,
    most_sequences: int,
) -> Budget:
    engine = find_engine(run.engine)
    share = memory_share or engine.memory_share or 1.0
    step = batched_tokens or engine.batched_tokens or run.micro_batch * run.seq_len
    return Budget(
        usable=memory_bytes * share,
        weights=compute_held_bytes(shape, run),
        activations=compute_step_bytes(shape, run, step, most_sequences or run.micro_batch),
        beside=(context_gib + sum(find_kept_gib(run).values())) * GIB,
    )


def count_pages(shape: Shape, run: Execution, engine: Engine, cache_bytes: float) -> int:
    """Whole ones that fit."""
    page = compute_sequence_bytes(shape, run, engine.block_tokens)
    return int(cache_bytes // page) if page else 0


def find_point(
    shape: Shape, run: Execution, cache_bytes: float, context: int, most_positions: int, most_sequences: int
) -> Point:
    each = compute_sequence_bytes(shape, run, context)
    fit = int(cache_bytes // each) if each else most_sequences
    if not fit:
        return Point(context=context, sequences=0, limited_by=CACHE if cache_bytes else WEIGHTS)
    if most_sequences and fit > most_sequences:
        return Point(context=context, sequences=most_sequences, limited_by=SEQUENCES)
    return Point(context=context, sequences=fit, limited_by=POSITIONS if context == most_positions else CACHE)


def list_contexts(most_positions: int) -> list[int]:
    """Powers of two from 1,024 on, and the last position."""
    powers = [1 << k for k in range(10, most_positions.bit_length())]
    return [*(n for n in powers if n < most_positions), most_positions]
