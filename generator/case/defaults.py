"""The workload of a request: the user's numbers, and the field's usual ones where nothing was asked for."""

from __future__ import annotations

from dataclasses import replace

from generator.case.request import Request
from generator.case.workload import DEFAULT_GOAL, Workload
from generator.inputs.data_files import DataSource
from generator.inputs.model_source import ModelSource
from generator.model import ModelSpec

DEFAULT_LEARNING_RATE = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}
"""TRL's SFT and LoRA defaults (docs "sft_trainer", "peft_integration"); 3e-4 for small models from scratch."""
FROM_SCRATCH_LEARNING_RATE = 3e-4
DEFAULT_SEQ_LEN = {"causal-lm": 2048, "sft": 2048, "text-classification": 512}
DEFAULT_GLOBAL_BATCH = 32


def fill_workload(request: Request, spec: ModelSpec, source: ModelSource, data: DataSource | None) -> Workload:
    """The user's numbers, and the field's usual ones where nothing was said."""
    from_scratch = request.from_scratch or not source.has_weights
    seq_len = request.seq_len or min(DEFAULT_SEQ_LEN.get(request.task, 2048), spec.max_positions or 1 << 30)
    rate = FROM_SCRATCH_LEARNING_RATE if from_scratch else DEFAULT_LEARNING_RATE.get(request.train, 2e-5)
    fill = measure_fill(data, seq_len)
    workload = Workload(
        mode=request.mode,
        task=request.task,
        train=request.train,
        seq_len=seq_len,
        global_batch=request.global_batch or DEFAULT_GLOBAL_BATCH,
        learning_rate=request.learning_rate or rate,
        epochs=request.epochs or 1.0,
        max_steps=request.max_steps,
        lora_rank=request.lora_rank,
        lora_alpha=2 * request.lora_rank,
        labels=request.labels or (data.labels if data and data.labels else 2),
        new_tokens=request.new_tokens,
        concurrency=request.concurrency,
        from_scratch=from_scratch,
        packing=request.packing,
        loss_on=choose_loss_tokens(request, data),
        fill_mean=fill[0],
        fill_long=fill[1],
        optimize_for=request.optimize_for or DEFAULT_GOAL,
        allow=request.allow,
        pins=request.pins,
    )
    return replace(workload, steps=request.max_steps or count_steps(workload, data))


def choose_loss_tokens(request: Request, data: DataSource | None) -> str | None:
    """What the assistant says, unless something else was asked for, or nothing says who speaks."""
    if request.task != "sft" or request.mode != "train":
        return None
    if data is not None and data.sft_format == "text":
        return "all"
    return request.loss_on or "assistant"


def measure_fill(data: DataSource | None, seq_len: int) -> tuple[float | None, float | None]:
    """Mean and 90th percentile of the rows' lengths as shares of ``seq_len``, rows cut there."""
    if data is None or not data.token_quantiles:
        return None, None
    shares = [min(1.0, n / seq_len) for n in data.token_quantiles]
    return sum(shares) / len(shares), shares[90]


def count_steps(workload: Workload, data: DataSource | None) -> int | None:
    """Optimizer steps of the whole run, from the data's size; ``None`` where that is not known."""
    if data is None or data.rows is None:
        return None
    sequences = data.rows
    if workload.task == "causal-lm":
        if data.tokens is None:
            return None
        sequences = data.tokens // workload.seq_len
    return max(1, int(sequences / workload.global_batch * workload.epochs))
