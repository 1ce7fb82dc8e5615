"""Estimates as plan.json holds them."""

from __future__ import annotations

from typing import Any

from generator.cost.estimate import Estimate
from generator.decide.candidates import Candidate
from generator.decide.space import HEADROOM_SHARE
from generator.emit.plan_document import CandidateCostRecord, EstimateRecord, SourceRecord


def round_floats(value: Any) -> Any:
    """Floats to 6 significant digits: the last bits of a product are not worth a difference between machines."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: round_floats(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_floats(v) for v in value]
    return value


def describe_estimate(estimate: Estimate) -> EstimateRecord:
    memory = estimate.peak_memory_range or (None, None)
    seconds = estimate.step_seconds_range or (None, None)
    return EstimateRecord(
        memory_gib={p.name: round_floats(p.value) for p in estimate.memory},
        peak_memory_gib=round_floats(estimate.peak_memory_gib),
        peak_memory_gib_p10=round_floats(memory[0]),
        peak_memory_gib_p90=round_floats(memory[1]),
        allocator_peak_gib=round_floats(estimate.allocator_peak_gib),
        limit_gib=round_floats(estimate.limit_gib),
        headroom_gib=round_floats(estimate.headroom_gib),
        headroom_share=HEADROOM_SHARE,
        time_seconds={p.name: round_floats(p.value) for p in estimate.time},
        step_seconds=round_floats(estimate.step_seconds),
        step_seconds_p10=round_floats(seconds[0]),
        step_seconds_p90=round_floats(seconds[1]),
        tokens_per_step=round_floats(estimate.tokens_per_step),
        tokens_per_second=round_floats(estimate.tokens_per_second),
        basis=estimate.basis,
        memory_sources={p.name: SourceRecord(basis=p.basis, source=p.source) for p in estimate.memory},
        time_sources={p.name: SourceRecord(basis=p.basis, source=p.source) for p in estimate.time},
    )


def list_costs(estimate: Estimate) -> dict[str, float]:
    """The fields of a ``CostRecord``, for records that hold more than them."""
    return round_floats(
        {
            "peak_memory_gib": estimate.peak_memory_gib,
            "step_seconds": estimate.step_seconds,
            "tokens_per_second": estimate.tokens_per_second,
        }
    )


def list_candidate_costs(candidate: Candidate) -> dict[str, Any]:
    """The fields of a ``CandidateCostRecord``."""
    run = candidate.execution
    return list_costs(candidate.estimate) | {"micro_batch": run.micro_batch, "accumulation": run.accumulation}


def summarize_candidate(candidate: Candidate) -> CandidateCostRecord:
    return CandidateCostRecord(**list_candidate_costs(candidate))
