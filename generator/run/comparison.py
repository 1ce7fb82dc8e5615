"""Predicted against measured: the content of smoke.json."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.masking import mask_secrets
from generator.run.figures import InferFigures, RunFigures
from generator.run.stage import Stage

ALLOWED_RATIO = 2.0
"""Times apart, from where a prediction is said to be wrong."""
ANSWER_LENGTH = 300
HOST_ALONE = frozenset({"xla"})
"""devices whose runtime tells a program nothing of their memory"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity. ``ratio`` is measured over predicted; ``p10`` and ``p90`` are the plan's range, where it has one."""

    what: str
    unit: str
    predicted: float
    measured: float
    ratio: float | None
    p10: float | None = None
    p90: float | None = None

    @property
    def is_inside(self) -> bool | None:
        """Whether it was measured within the range; ``None`` where there is none."""
        return None if self.p10 is None or self.p90 is None else self.p10 <= self.measured <= self.p90


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """smoke.json, in the form of benchmarks/results: ``repeats`` are the seconds of each step after the first."""

    schema: int = 1
    technique: dict[str, str]
    device: str
    host: dict[str, str]
    versions: dict[str, str]
    model: str
    workload: dict[str, Any]
    commands: list[list[str]]
    stage_seconds: dict[str, float]
    losses: list[float]
    repeats: list[float]
    comparison: list[Comparison]
    answer: str
    inference: dict[str, Any]
    """infer.json without its texts"""


def compare(plan: dict, run: RunFigures | None, inference: InferFigures, stages: list[Stage]) -> SmokeResult:
    """``run`` is ``None`` where the project only infers."""
    return SmokeResult(
        technique=plan["choice"],
        device=plan["project"]["machine"],
        host={"machine": platform.machine(), "python": platform.python_version()},
        versions=(run or inference).versions,
        model=plan["case"]["model"]["name"],
        workload=plan["case"]["workload"],
        commands=[[Path(stage.command[0]).name, *stage.command[1:]] for stage in stages],
        stage_seconds={stage.name: round(stage.seconds, 2) for stage in stages},
        losses=run.losses if run else [],
        repeats=run.steps if run else [],
        comparison=[*(compare_training(plan, run) if run else []), *compare_inference(plan, inference)],
        answer=mask_secrets(inference.answer)[:ANSWER_LENGTH],
        inference=inference.model_dump(by_alias=True, exclude={"prompt", "answer", "versions"}, exclude_none=True),
    )


def compare_training(plan: dict, run: RunFigures) -> list[Comparison]:
    estimate = plan["estimate"]
    fast, slow = estimate.get("step_seconds_p10"), estimate.get("step_seconds_p90")
    tokens, seconds = estimate["tokens_per_second"], estimate["step_seconds"]
    # the same range, of as many tokens
    least, most = (tokens * seconds / time if time else None for time in (slow, fast))
    return [
        compare_value("step time", "s", seconds, run.step_seconds, (fast, slow)),
        compare_value("tokens/s", "1/s", tokens, run.tokens_per_second, (least, most)),
        *(
            [compare_value("peak memory", "GiB", *compare_memory(plan, run.peak_memory_gib))]
            if sees_memory(plan)
            else []
        ),
    ]


def compare_inference(plan: dict, answered: InferFigures) -> list[Comparison]:
    """How fast one answer is written, once it has begun, and what that took. What only reads, or computes rows, is predicted for other
    lengths than that of the smoke run: nothing is compared."""
    predicted = plan["config"].get("predicted") or predict_answers(plan.get("serving"))
    if predicted is None or not answered.new_tokens:
        return []
    unseen = find_unseen_gib(plan, (plan.get("serving") or plan)["estimate"])
    memory = predicted["peak_memory_gib"] - unseen
    return [
        compare_value("answer", "tokens/s", predicted["decode_tokens_per_s"], measure_decoding(answered)),
        *([compare_value("its memory", "GiB", memory, answered.peak_memory_gib)] if sees_memory(plan) else []),
    ]


def predict_answers(serving: dict | None) -> dict[str, float] | None:
    """Of the plan by which a training project answers one prompt at a time; ``None`` where it writes nothing."""
    times = serving["estimate"]["time_seconds"] if serving else {}
    if not serving or not times.get("decode"):
        return None
    seconds, estimate = times["decode"] + times.get("launch", 0.0), serving["estimate"]
    return {
        "decode_tokens_per_s": (estimate["tokens_per_step"] - 1) / seconds,  # the first is the prompt's
        "peak_memory_gib": estimate["peak_memory_gib"],
    }


def measure_decoding(answered: InferFigures) -> float:
    """Tokens per second behind the first, where the project says when that came; else of the whole answer."""
    after = answered.seconds - (answered.ttft_s or 0.0)
    if answered.ttft_s and answered.new_tokens > 1 and after > 0:
        return (answered.new_tokens - 1) / after
    return answered.tokens_per_second


def compare_value(
    what: str, unit: str, predicted: float, measured: float, between: tuple[float | None, float | None] = (None, None)
) -> Comparison:
    """``between``: P10 and P90 of the prediction."""
    ratio = measured / predicted if predicted else math.inf
    finite = ratio if math.isfinite(ratio) else None
    low, high = between
    return Comparison(what=what, unit=unit, predicted=predicted, measured=measured, ratio=finite, p10=low, p90=high)


def sees_memory(plan: dict) -> bool:
    """Whether what a run calls its peak is of the memory that was predicted: of a TPU's it sees the host's process alone."""
    return plan["project"]["device"] not in HOST_ALONE


def compare_memory(plan: dict, measured: float) -> tuple[float, float, tuple[float | None, float | None]]:
    """Predicted, measured, and the range of the prediction. The measuring call sees the process on a CPU, the allocator's peak on a
    GPU: the rest is not part of it."""
    estimate = plan["estimate"]
    unseen = find_unseen_gib(plan, estimate)
    low, high = (estimate.get(f"peak_memory_gib_{end}") for end in ("p10", "p90"))
    between = (None if low is None else low - unseen, None if high is None else high - unseen)
    return estimate["peak_memory_gib"] - unseen, measured, between


def find_unseen_gib(plan: dict, estimate: dict) -> float:
    """What the measuring call does not see of an estimate: on a GPU all that is not the allocator's."""
    on_cpu = plan["project"]["device"] in ("cpu", "portable")
    return 0.0 if on_cpu else estimate["peak_memory_gib"] - estimate["allocator_peak_gib"]


def format_lines(result: SmokeResult, plan: dict, beside: str = "") -> list[str]:
    """The comparison for people. ``beside``: what other work the machine had, where it was busy."""
    lines = [f"{'':14}{'predicted':>12}{'measured':>12}   ratio"] if result.comparison else []
    for row in result.comparison:
        ratio = f"{row.ratio:.2f}" if row.ratio else "-"
        lines.append(
            f"{row.what:<14}{row.predicted:>12.4g}{row.measured:>12.4g}   {ratio}  ({row.unit}){describe_place(row)}"
        )
    lines += explain_ratios(result.comparison, plan, beside)
    if result.losses:
        lines.append(f"loss {result.losses[0]:.3f} → {result.losses[-1]:.3f} over {len(result.losses)} steps")
    return [*lines, describe_inference(result.inference)]


def describe_place(row: Comparison) -> str:
    """Where it was measured in the plan's range; nothing where there is none."""
    if row.is_inside is None:
        return ""
    return f", {'inside' if row.is_inside else 'outside'} {row.p10:.4g}–{row.p90:.4g} (P10–P90)"


def describe_inference(figures: dict[str, Any]) -> str:
    speed, peak, first = (figures[key] for key in ("tokens_per_second", "peak_memory_gib", "first_call_seconds"))
    return f"inference: {speed:.4g} tokens/s, {peak:.4g} GiB at peak; the first call took {first:.3g} s"


def explain_ratios(rows: list[Comparison], plan: dict, beside: str = "") -> list[str]:
    """What is far from its prediction, in words, and what to do; nothing where all is within ``ALLOWED_RATIO``."""
    ratios = {row.what: row.ratio for row in rows if row.ratio}
    times = {"a step takes": ratios.get("step time", 1.0), "a token of an answer takes": 1 / ratios.get("answer", 1.0)}
    sizes = {"it needs": ratios.get("peak memory", 1.0), "to answer it needs": ratios.get("its memory", 1.0)}
    lines = []
    for what, ratio in times.items():
        if not is_close(ratio):
            advice = f"{beside}: try again when it is quiet" if beside and ratio > 1 else advise_on_speed(plan)
            lines.append(f"{what} {describe_ratio(ratio)} what was predicted: {advice}")
    for what, ratio in sizes.items():
        if not is_close(ratio):
            lines.append(f"{what} {describe_ratio(ratio)} the memory that was predicted")
    return lines


def advise_on_speed(plan: dict) -> str:
    if plan["case"]["hardware"]["measured"]:
        return "its rates were measured, so look what else runs on this machine"
    return "plan again with --measure, which times this machine's rates first (perfgen plan, perfgen init)"


def is_close(ratio: float) -> bool:
    return 1 / ALLOWED_RATIO <= ratio <= ALLOWED_RATIO


def describe_ratio(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio > 1 else f"1/{1 / ratio:.3g} of"
