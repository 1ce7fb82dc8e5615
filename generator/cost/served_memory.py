"""What a served model holds of a device beside its weights: caches of sequences, the largest step, and what an engine keeps.

An engine that takes a share of the memory as it starts runs its largest step once, before it has a cache: as many tokens as one step
may have, then the sampling of as many sequences. What that leaves of the share is the cache (vLLM 0.33: v1/worker/gpu_worker.py,
determine_available_memory; v1/worker/gpu_model_runner.py, profile_run).
"""

from __future__ import annotations

import math

from generator.cost import constants as c
from generator.cost.decode import compute_cache_bytes, find_cached_share
from generator.cost.engines import find_engine
from generator.cost.estimate import GIB
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.weights import compute_held_bytes


def compute_widest_bytes(shape: Shape, run: Execution, tokens: float) -> float:
    """What a block holds at its widest point: without gradients nothing is kept but the residual and its norm, and gate, up and
    product, or queries, keys and values, or what experts return of each token. Tensor parts divide all but hidden states."""
    width = max(3.0 * shape.ffn_active / run.tp, (2.0 * shape.query + 2.0 * shape.key) / run.tp)
    # of each expert that a token goes to: gate and up, or in the same place its output, and their product
    if shape.experts:
        ffn = max(x.inputs for x in shape.linears if x.role == "down" and x.count == shape.experts) / run.tp
        width = max(width, shape.experts_per_token * (max(2.0 * ffn, shape.hidden) + ffn))
    return tokens * BYTES[run.compute_dtype] * (2.0 * shape.hidden + width)


def compute_step_bytes(shape: Shape, run: Execution, batched_tokens: int, sequences: int) -> float:
    """Of the largest step: its widest block, or its hidden states and the sampling of every sequence's next token. The process that
    samples has logits of the whole vocabulary, however many parts the output layer is divided into."""
    size = BYTES[run.compute_dtype]
    rows = sequences * (run.draft_tokens + 1)  # proposed tokens are verified with one more
    sampled = rows * shape.head_outputs * (size + c.SAMPLING_BYTES)
    tokens = max(batched_tokens, rows)
    return max(compute_widest_bytes(shape, run, tokens), tokens * shape.hidden * size + sampled)


def find_kept_gib(run: Execution) -> dict[str, float]:
    """What an engine keeps as long as it runs, by item."""
    kept = {"graphs": float(c.GRAPH_GIB)} if find_engine(run.engine).replays else {}
    return kept | ({"communicator": float(c.COMMUNICATOR_GIB["default"])} if run.parts > 1 else {})


def compute_sequence_bytes(shape: Shape, run: Execution, tokens: int) -> float:
    """One sequence's cache on one device, in whole pages."""
    return compute_cache_bytes(shape, run.but(micro_batch=1), float(tokens), divided=True)


def count_cached_sequences(shape: Shape, run: Execution, memory_bytes: float, tokens: int, context_gib: float) -> int:
    """Sequences of ``tokens``, prompt and answer together, that an engine caches of a device's memory by its defaults, at most as many
    as it takes; 0 where nothing is left beside weights and the largest step. The same rule by hand: vLLM's issue 12330, in the tests."""
    engine = find_engine(run.engine)
    most = engine.most_sequences
    step = engine.batched_tokens or run.micro_batch * run.seq_len
    beside = (context_gib + sum(find_kept_gib(run).values())) * GIB
    beside += compute_held_bytes(shape, run) + compute_step_bytes(shape, run, step, most or run.micro_batch)
    left = memory_bytes * (engine.memory_share or 1.0) - beside
    each = compute_sequence_bytes(shape, run, tokens)
    fit = int(max(0.0, left) // each) if each else most
    return min(fit, most) if most else fit


def compute_filled_bytes(shape: Shape, run: Execution, sequences: int, tokens: int) -> float:
    """The cache that ``sequences`` of ``tokens`` fill on one device. Layers with a window keep, beside the windows, what comes in the
    steps that are under way: old pages are let go of when their step has ended (vLLM 0.33, v1/kv_cache_interface.py). Where kinds of
    layers differ, pages are of groups with as many layers each, the last of a kind padded (v1/core/kv_cache_planning.py)."""
    in_flight = max(c.STEPS_IN_FLIGHT, run.pp) * find_engine(run.engine).batched_tokens
    each = BYTES[run.cache_dtype or run.compute_dtype]
    filled = sequences * compute_sequence_bytes(shape, run, tokens)
    group = count_grouped_layers(shape)
    for kind in shape.attended:
        kept = min(tokens, kind.window or tokens)
        layers = math.ceil(kind.layers / group) * group
        padding, coming = (
            sequences * kept * (layers - kind.layers),
            min(in_flight, sequences * (tokens - kept)) * layers,
        )
        filled += kind.cached * (padding + coming) * each * find_cached_share(shape, run, kind)
    return filled


def count_grouped_layers(shape: Shape) -> int:
    """Layers that share a page: of the kind that has the fewest, or the most where that is not many more (vLLM 0.33,
    v1/core/kv_cache_planning.py, _get_kv_cache_groups_uniform_page_size)."""
    counts = [kind.layers for kind in shape.attended] or [1]
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
