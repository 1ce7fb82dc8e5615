"""What a serving project is told: its engine, the limits that keep it from running out, and what was predicted."""

from __future__ import annotations

from generator.case.limits import GRACE_SECONDS, MEMORY_SHARE
from generator.case.stacks import load_stack
from generator.case.vendors import CPU
from generator.cost.engines import find_engine as find_row
from generator.cost.execution import Execution
from generator.decide.limits import find_limits
from generator.decide.plan import Plan, Planned
from generator.emit.figures import round_floats
from generator.emit.plan_document import (
    ABSENT,
    ConversionRecord,
    FrontierRecord,
    PredictedConfig,
    ServerRecord,
    ServingConfig,
)
from generator.techniques.engines import Engine

CONVERTED = "weights"
HOST, PORT = "127.0.0.1", 8000
STORED = {"none": None, "int4": "int4", "int8": "int8", "float8": "fp8", "nf4": "nf4"}
"""The project's word for how weights are stored, by the cost model's; ``None``: in the format of the arithmetic."""


def is_server(plan: Plan) -> bool:
    """Whether the plan is of a project that serves a model which writes."""
    return plan.case.workload.mode == "infer" and plan.case.workload.task != "text-classification"


def find_engine(plan: Plan) -> Engine:
    """The chosen engine. Raises ``TypeError`` where none was to choose."""
    engine = next((t for t in plan.best.members if t.axis == "engine"), None)
    if not isinstance(engine, Engine):
        raise TypeError("a plan without an engine")
    return engine


def describe_server(plan: Plan) -> ServerRecord:
    """The engine, its environments, the words that start it and what it may be asked for."""
    engine, limits = find_engine(plan), find_limits(plan)
    return ServerRecord(
        engine=engine.name,
        leaf=engine.leaf,
        command=engine.command,
        conversion=describe_conversion(engine) if engine.conversion else None,
        limited_by=limits.limited_by,
        frontier=tuple(FrontierRecord(context=context, sequences=n) for context, n in limits.frontier),
        grace_seconds=GRACE_SECONDS,
    )


def describe_conversion(engine: Engine) -> ConversionRecord:
    stack = load_stack(engine.conversion, CPU.choose_build(engine.conversion, None, None, ""))
    return ConversionRecord(
        leaf=engine.leaf,
        torch=stack.version("torch"),
        torch_index=stack.build.index,
        requirements=tuple(f"{name}=={version}" for name, version in stack.packages),
    )


def build_serving_config(planned: Planned) -> ServingConfig:
    plan = planned.plan
    engine, limits, run = find_engine(plan), find_limits(plan), plan.best.execution
    workload, weights = plan.case.workload, STORED[run.quant] or run.weights_dtype
    return ServingConfig(
        engine=engine.name,
        weights=weights,
        converted=CONVERTED if engine.conversion else ABSENT,
        name=planned.work.source.name.rsplit("/", 1)[-1],
        host=HOST,
        port=PORT,
        max_context=limits.max_context,
        max_concurrency=limits.max_concurrency,
        max_waiting=limits.max_waiting,
        max_new_tokens=workload.new_tokens,
        prompt_tokens=workload.seq_len,
        threads=plan.case.hardware.cpu.budget or ABSENT if plan.case.on_cpu else ABSENT,
        flags=engine.list_flags(limits, plan.best.layout, run.compute_dtype, weights) if engine.command else ABSENT,
    )


def predict(plan: Plan) -> PredictedConfig:
    """One request by itself, and all that the plan is for."""
    run, estimate = plan.best.execution, plan.best.estimate
    alone = time_parts(plan, run.but(micro_batch=1, continuous=False))
    decode = alone["decode"] + alone.get("launch", 0.0)
    return PredictedConfig(
        **round_floats(
            {
                "decode_tokens_per_s": run.new_tokens / decode,
                "prefill_tokens_per_s": run.seq_len / alone["prefill"],
                "ttft_s": alone["prefill"],
                "throughput_tokens_per_s": estimate.tokens_per_second,
                "peak_memory_gib": reserve(plan) or estimate.peak_memory_gib,
            }
        )
    )


def reserve(plan: Plan) -> float | None:
    """GiB that the engine takes of each device as it starts, whatever it needs; ``None`` where it takes what it needs."""
    share = MEMORY_SHARE if find_row(plan.best.execution.engine).memory_share else None
    return share and share * plan.best.estimate.limit_gib


def time_parts(plan: Plan, run: Execution) -> dict[str, float]:
    return {item.name: item.value for item in plan.best.cost.estimate(run).time}
