"""Random questions about a model that is served, and what must hold of the answers: `python benchmarks/fuzz.py --mode infer`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz_cases import (
    MENDED,
    FuzzCase,
    draw_machine,
    draw_model,
    draw_usable_pins,
    open_case,
    size_model,
)
from generator.case.request import Request
from generator.case.workload import GOALS
from generator.decide.goal import Target
from generator.decide.limits import find_limits, fits
from generator.decide.plan import Plan
from generator.decide.space import find_usable_gib
from generator.emit.server import is_server
from generator.techniques.base import list_axes

ASKED = (1, 1, 1, 2, 4, 8, 16, 64, 256, 1000, 5000)
PROMPTS = (None, None, 1, 16, 128, 500, 1024, 2048, 4096, 8192, 32768, 131072)
ANSWERS = (None, None, 1, 16, 64, 256, 512, 1024, 4096, 16384)
LATENCIES = (0.001, 0.5, 2.0, 10.0, 60.0)
"""seconds"""


def draw_serving_case(seed: int, models: tuple[Path, ...], mended: float = MENDED) -> FuzzCase:
    """The case of a seed, as ``fuzz_cases.draw_case``: a decoder on a machine, with users, lengths, a goal and what is allowed."""
    draw = Random(seed)
    files: dict[str, str] = {}
    placed: list[str] = []
    mends = draw.random() < mended
    name, model = draw_model(draw, models, mends)
    spec = size_model(model)
    for _ in range(5 if mends else 0):  # encoders are refused before anything is searched
        if spec is not None and spec.kind == "decoder":
            break
        name, model = draw_model(draw, models, mends)
        spec = size_model(model)
    work: dict[str, Any] = {
        "mode": "infer",
        "task": "text-classification" if spec is not None and spec.kind == "encoder" else "causal-lm",
        "optimize_for": draw.choice((None, *GOALS["infer"])),
        "concurrency": draw.choice((None, *ASKED)),
        "prompt_tokens": draw.choice(PROMPTS),
        "max_latency": draw.choice(LATENCIES) if draw.random() < 0.15 else None,
        "tokenizer": "fuzz/tokenizer",
    }
    answer = draw.choice(ANSWERS)
    work |= {} if answer is None else {"new_tokens": answer}
    most = spec.max_positions if spec is not None and mends else None
    if isinstance(most, int) and (work["prompt_tokens"] or 0) > most > 0:
        work["prompt_tokens"] = draw.choice((None, max(1, most // 2)))
    if name is not None:
        work |= {"model": name}
    elif model is not None:
        files["model/config.json"] = json.dumps(model)
        work |= {"model": "fuzz/model", "config": "model/config.json"}
        placed.append("config")
    target = Target(goal=draw.choice(("cheapest", "smallest")), tokens_per_day=None) if draw.random() < 0.01 else None
    hardware = None
    if target is None:
        words, hardware = draw_machine(draw, files, placed, mends)
        work |= words
    known = work | {"train": "full", "seq_len": work["prompt_tokens"], "global_batch": None}
    case = open_case({k: v for k, v in known.items() if v is not None or k in KEPT}, spec, hardware) if mends else None
    pins = draw_usable_pins(draw, case) if case is not None and draw.random() < 0.5 else ()
    request = Request(**work, offline=True, pins=pins, allow=draw_allowed_formats(draw))
    return FuzzCase(seed=seed, request=request, files=files, placed=tuple(placed), target=target)


KEPT = ("seq_len", "global_batch")
"""of what ``open_case`` asks for, what may be None"""


def draw_allowed_formats(draw: Random) -> tuple[str, ...]:
    """In two of five cases up to three techniques that may change results, or are taken on request alone."""
    if draw.random() < 0.6:
        return ()
    members = [t for axis in list_axes() for t in axis.for_mode("infer")]
    risky = [t.id for t in members if t.quality or t.request_only]
    return tuple(sorted({draw.choice(risky) for _ in range(draw.choice((1, 1, 2, 3)))}))


def check_limits(plan: Plan, document: dict[str, Any]) -> Iterator[str]:
    """A server is told what fits, by flags that agree with each other, and its frontier falls."""
    if not is_server(plan):
        return
    limits, run, cost = find_limits(plan), plan.best.execution, plan.best.cost
    serving = document["config"]["serving"]
    asked = plan.case.workload.seq_len + plan.case.workload.new_tokens
    most = plan.case.model.max_positions or math.inf
    usable = find_usable_gib(cost, run)
    if not asked <= limits.max_context <= most:
        yield f"contexts of {limits.max_context}, where {asked} are asked for and the model has {most} positions"
    if not fits(cost, run, limits.max_context, limits.of_one_copy):
        yield f"{limits.of_one_copy} x {limits.max_context} tokens do not fit the {usable:.2f} GiB"
    rows = limits.frontier
    if list(rows) != sorted(rows, key=lambda row: (row[0], -row[1])) or len({row[0] for row in rows}) != len(rows):
        yield f"a frontier that does not rise: {rows}"
    if any(before[1] < after[1] for before, after in itertools.pairwise(rows)):
        yield f"a longer context has more sequences: {rows}"
    if not any(context >= asked and sequences >= limits.max_concurrency for context, sequences in rows):
        yield f"{limits.max_concurrency} of {asked} tokens are planned, and the frontier is {rows}"
    for context, sequences in rows:
        each = max(1, sequences // plan.best.layout.dp)
        if not fits(cost, run, context, each):
            yield f"the frontier has {each} x {context} tokens, which do not fit"
    if limits.of_one_copy * plan.best.layout.dp < limits.max_concurrency:
        yield f"{plan.best.layout.dp} copies of {limits.of_one_copy} are fewer than {limits.max_concurrency}"
    if (serving["max_context"], serving["max_concurrency"]) != (limits.max_context, limits.max_concurrency):
        yield f"config.yaml says {serving['max_context']} x {serving['max_concurrency']}"
    if isinstance(serving.get("flags"), dict):
        yield from check_flags(serving["flags"], plan)


def check_flags(flags: dict[str, Any], plan: Plan) -> Iterator[str]:
    """What vLLM (config/scheduler.py, v1/worker/utils.py) and SGLang refuse or never could keep."""
    limits, layout = find_limits(plan), plan.best.layout
    cost, run = plan.best.cost, plan.best.execution
    sizes = {
        name: flags.get(name, 1) for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    }
    sizes |= {name: flags.get(name, 1) for name in ("tp-size", "pp-size", "dp-size")}
    if math.prod(sizes.values()) != layout.devices:
        yield f"flags of {math.prod(sizes.values())} devices, and the plan has {layout.devices}: {flags}"
    if flags.get("max-num-seqs", flags.get("max-running-requests")) != limits.of_one_copy:
        yield f"a copy computes {limits.of_one_copy} at a time, and the flags say {flags}"
    if "max-num-batched-tokens" in flags and flags["max-num-batched-tokens"] < flags["max-num-seqs"]:
        yield f"a step of {flags['max-num-batched-tokens']} tokens for {flags['max-num-seqs']} sequences"
    if flags.get("max-model-len", flags.get("context-length")) != limits.max_context:
        yield f"the context is {limits.max_context}, and the flags say {flags}"
    parts = {item.name: item.value for item in plan.best.estimate.memory}
    before = parts["context"] + parts.get("communicator", 0.0)
    if "gpu-memory-utilization" in flags and flags["gpu-memory-utilization"] * cost.limit_gib > cost.limit_gib - before:
        yield f"{flags['gpu-memory-utilization']} of {cost.limit_gib:.1f} GiB are not free beside {before:.2f}"
    if "mem-fraction-static" in flags:
        static = flags["mem-fraction-static"] * (cost.limit_gib - before)
        if static < parts["weights"] + parts["kv cache"] - 0.01:
            yield f"{static:.2f} GiB of weights and cache, and the plan needs {parts['weights'] + parts['kv cache']:.2f}"
        beside = sum(parts.values()) - parts["weights"] - parts["kv cache"]
        if static + beside > find_usable_gib(cost, run) + 1e-6:
            yield f"{static:.2f} GiB of weights and cache leave no room for {beside:.2f}"
