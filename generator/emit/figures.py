"""Estimates as plan.json holds them."""

from __future__ import annotations

from typing import Any

from generator.cost.estimate import Estimate
from generator.decide.candidates import HEADROOM_SHARE, Candidate


def round_floats(value: Any) -> Any:
    """Floats to 6 significant digits: the last bits of a product are not worth a difference between machines."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: round_floats(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_floats(v) for v in value]
    return value


def describe_estimate(found: Estimate) -> dict:
    return round_floats(
        {
            "memory_gib": {p.name: p.value for p in found.memory},
            "peak_memory_gib": found.peak_memory_gib,
            "allocator_peak_gib": found.allocator_peak_gib,
            "limit_gib": found.limit_gib,
            "headroom_gib": found.headroom_gib,
            "headroom_share": HEADROOM_SHARE,
            "time_seconds": {p.name: p.value for p in found.time},
            "step_seconds": found.step_seconds,
            "tokens_per_step": found.tokens_per_step,
            "tokens_per_second": found.tokens_per_second,
            "basis": found.basis,
            "sources": {p.name: {"basis": p.basis, "source": p.source} for p in (*found.memory, *found.time)},
        }
    )


def summarize_candidate(candidate: Candidate) -> dict:
    run = candidate.execution
    return summarize_estimate(candidate.estimate) | {"micro_batch": run.micro_batch, "accumulation": run.accumulation}


def summarize_estimate(found: Estimate) -> dict:
    return round_floats(
        {
            "peak_memory_gib": found.peak_memory_gib,
            "step_seconds": found.step_seconds,
            "tokens_per_second": found.tokens_per_second,
        }
    )
