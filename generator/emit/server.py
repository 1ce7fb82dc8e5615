"""What a serving project is told: its engine, the limits that keep it from running out, and what was predicted."""

from __future__ import annotations

from generator.case.limits import GRACE_SECONDS, ServingLimits
from generator.case.stacks import load_stack
from generator.case.vendors import CPU
from generator.cost.decode import compute_cache_bytes
from generator.cost.estimate import GIB
from generator.cost.execution import BYTES
from generator.cost.of_case import build_cost_model
from generator.cost.weights import compute_stored_bytes
from generator.decide.limits import compute_filled_gib, find_limits
from generator.decide.plan import Plan, Planned
from generator.decide.space import find_memory_share
from generator.emit.figures import round_floats
from generator.emit.plan_document import (
    ABSENT,
    ConversionRecord,
    FrontierRecord,
    PredictedConfig,
    ServerRecord,
    ServingConfig,
)
from generator.emit.pods import ENGINE_CPUS
from generator.techniques.engines import Engine, Flag

CONVERTED, CHECKPOINT = "weights", "checkpoint"
HOST, PORT = "127.0.0.1", 8000
TOKENIZER_GIB = 0.05
"""on a disk: tokenizer.json of a vocabulary of 262,144 (Gemma 3) is 33 MB"""
STORED = {
    **{"none": None, "int4": "int4", "int8": "int8", "float8": "fp8", "nf4": "nf4"},
    **{"torchao-int8": "int8", "torchao-int4-g32": "int4"},
}
"""The project's word for how weights are stored, by the cost model's; ``None``: in the format of the arithmetic."""


def is_server(plan: Plan) -> bool:
    """Whether the plan is of a project that serves a model which writes."""
    return plan.case.workload.serves


def find_chosen_engine(plan: Plan) -> Engine:
    """The chosen engine. Raises ``TypeError`` where none was to choose."""
    engine = next((t for t in plan.best.members if t.axis == "engine"), None)
    if not isinstance(engine, Engine):
        raise TypeError("a plan without an engine")
    return engine


def describe_server(plan: Plan) -> ServerRecord:
    """The engine, its environments, the words that start it and what it may be asked for."""
    engine, limits = find_chosen_engine(plan), find_limits(plan)
    return ServerRecord(
        engine=engine.name,
        leaf=engine.leaf,
        command=engine.command,
        conversion=describe_conversion(plan, engine) if engine.conversion else None,
        limited_by=limits.limited_by,
        frontier=tuple(FrontierRecord(context=context, sequences=n) for context, n in limits.frontier),
        grace_seconds=GRACE_SECONDS,
        cpus_per_task=count_server_cpus(plan),
        proposals="draft_model" if plan.best.execution.draft_params else "prompt_lookup",
    )


def count_server_cpus(plan: Plan) -> int | None:
    """Of a Slurm job on GPUs: their share of the node's. ``None`` for whole nodes whose CPUs nobody named; of a part of such a node
    what an engine needs at least, for Slurm refuses a job that asks for more than there is."""
    case, here = plan.case, plan.best.layout.per_node
    of_node = len(case.hardware.accelerators)
    if any(note.who == "spec" and note.field == "cpu" for note in case.hardware.notes):
        return None if here == of_node else ENGINE_CPUS + here
    budget = case.hardware.cpu.budget
    return budget and max(ENGINE_CPUS + here, budget * here // max(of_node, 1))


def measure_filled(plan: Plan) -> float:
    """GiB of a server whose requests are all as long, and as many, as it takes them."""
    run, limits = plan.best.execution, find_limits(plan)
    return compute_filled_gib(plan.best.cost, run, limits.max_context, limits.of_one_copy)


def measure_files(plan: Plan) -> float:
    """GiB of the model on a disk, as its owner publishes it."""
    case = plan.case
    if case.model.quantization:
        return compute_stored_bytes(build_cost_model(case).shape, plan.best.execution) / 2**30
    return case.model.params * BYTES.get(case.model.dtype or "bfloat16", 2.0) / 2**30


def measure_read_files(plan: Plan) -> dict[str, float]:
    """GiB on a disk of all that a server reads, by its key in config.yaml."""
    workload = plan.case.workload
    read = {"model": measure_files(plan), "tokenizer": TOKENIZER_GIB}
    if workload.draft:
        read["draft_model"] = workload.draft.params * BYTES["float32"] / 2**30  # in whatever format it is kept
    if workload.served_adapter:
        read["adapter"] = workload.served_adapter.bytes / 2**30
    return read


def describe_conversion(plan: Plan, engine: Engine) -> ConversionRecord:
    role, leaf = engine.choose_conversion(plan.case)
    stack = load_stack(role, CPU.choose_build(role, plan.case.device, None))
    return ConversionRecord(
        leaf=leaf,
        torch=stack.version("torch"),
        torch_index=stack.build.index,
        requirements=tuple(f"{name}=={version}" for name, version in stack.packages),
    )


def build_serving_config(planned: Planned) -> ServingConfig:
    plan = planned.plan
    engine, limits, run = find_chosen_engine(plan), find_limits(plan), plan.best.execution
    workload = plan.case.workload
    weights = CHECKPOINT if plan.case.model.quantization else STORED[run.quant] or run.weights_dtype
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
        cache=run.cache if not run.engine else ABSENT,
        step="direct" if run.steps_directly else ABSENT,
        compile=run.compile or ABSENT,
        proposed_tokens=run.draft_tokens or ABSENT if not engine.command else ABSENT,
        flags=list_flags(plan, engine, limits, weights) if engine.command else ABSENT,
    )


def list_flags(plan: Plan, engine: Engine, limits: ServingLimits, weights: str) -> dict[str, Flag]:
    run = plan.best.execution
    cache = engine.list_cache_flags(run.cache_dtype) if run.cache_dtype else {}
    adapter = plan.case.workload.served_adapter
    adapted = engine.list_adapter_flags(adapter.rank) if adapter else {}
    propose = engine.list_draft_flags if run.draft_params else engine.list_lookup_flags
    proposals = propose(run.draft_tokens) if run.draft_tokens else {}
    return {**engine.list_flags(limits, plan.best.layout, run.compute_dtype, weights), **cache, **adapted, **proposals}


def predict(plan: Plan) -> PredictedConfig:
    """One request by itself, and all that the plan is for."""
    run, estimate = plan.best.execution, plan.best.estimate
    alone = run.but(micro_batch=1, continuous=False, new_tokens=max(2, run.new_tokens))  # a rate is between two tokens
    answered = plan.best.cost.estimate(alone)
    return PredictedConfig(
        **round_floats(
            {
                "decode_tokens_per_s": 1 / answered.seconds_per_token,
                "prefill_tokens_per_s": run.seq_len / answered.ttft_seconds,
                "ttft_s": answered.ttft_seconds,
                "throughput_tokens_per_s": estimate.tokens_per_second,
                "peak_memory_gib": reserve(plan) or measure_least(plan),
            }
        )
    )


def reserve(plan: Plan) -> float | None:
    """GiB that the engine takes of each device as it starts, whatever it needs; ``None`` where it takes what it needs."""
    best = plan.best
    share = find_memory_share(best.cost, best.execution) if best.cost.takes_share(best.execution) else None
    return share and share * best.estimate.limit_gib


def measure_least(plan: Plan) -> float:
    """GiB without which a server does not start, or ends at the lengths that the plan is made for."""
    return plan.best.estimate.peak_memory_gib + find_unfilled_gib(plan)


def find_unfilled_gib(plan: Plan) -> float:
    """GiB of rows that are allocated beyond the lengths which the plan is made for. On a CPU too: PyTorch writes their zeros."""
    run, cost, context = plan.best.execution, plan.best.cost, find_limits(plan).max_context
    filled = compute_cache_bytes(cost.shape, run, float(run.seq_len + run.new_tokens)) / GIB
    if slots := cost.compute_slots_gib(run, context):
        return max(0.0, slots - filled)
    if run.engine or run.cache != "static":
        return 0.0
    return (compute_cache_bytes(cost.shape, run, float(context)) / GIB - filled) / (run.tp * run.pp)
