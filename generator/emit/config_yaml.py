"""config.yaml: every value that comes from outside."""

from __future__ import annotations

from typing import Any

from generator.case.case import Case
from generator.case.request import Request
from generator.decide.plan import Plan, Planned
from generator.emit.first_step import expect_first_step
from generator.emit.plan_document import (
    ABSENT,
    ConfigRecord,
    EvaluationRecord,
    LoraConfig,
    MachineConfig,
    ParallelRecord,
    ProcessesConfig,
    RowConfig,
    SavingRecord,
    TrainingConfig,
)
from generator.emit.preflight import expect_rates
from generator.emit.server import build_serving_config, is_server, measure_least, predict
from generator.inputs.tokenizer_revision import is_on_hub


def build_config(
    planned: Planned,
    parallel: ParallelRecord | None,
    saving: SavingRecord | None,
    evaluation: EvaluationRecord | None,
) -> ConfigRecord:
    """config.yaml: every value that comes from outside, and of those the ones that this project reads."""
    plan, work = planned.plan, planned.work
    source, request = work.source, work.request
    workload = plan.case.workload
    training = workload.mode == "train"
    return ConfigRecord(
        model=source.path,
        revision=source.revision if source.kind == "hub" else ABSENT,
        adapter=source.adapter.path if source.adapter else ABSENT,
        tokenizer=ABSENT if request.tokenizer is None else request.tokenizer,
        tokenizer_revision=source.tokenizer_revision if is_on_hub(request.tokenizer or "/") else ABSENT,
        draft_model=work.draft.path if work.draft else ABSENT,
        draft_revision=work.draft.revision if work.draft and work.draft.kind == "hub" else ABSENT,
        seq_len=workload.seq_len if training else ABSENT,
        output_dir="runs" if training else ABSENT,
        training=build_training_config(planned, saving.save_steps, evaluation) if saving else ABSENT,
        **(list_evaluation_values(request, evaluation) if training else {}),
        router_loss=None if "router_loss" in plan.edits.fragments else ABSENT,
        lora=build_lora_config(plan) if training and workload.train != "full" else ABSENT,
        machine=ABSENT if plan.case.portable else describe_fingerprint(plan),
        processes=describe_launch(planned.plan, parallel, saving) if parallel else ABSENT,
        serving=build_serving_config(planned) if is_server(plan) else ABSENT,
        rows=build_row_config(plan) if workload.by_row else ABSENT,
        predicted=predict(plan) if is_server(plan) else ABSENT,
        first_step=expect_first_step(plan, parallel) if training else ABSENT,
        **(list_data_values(planned) if training else {}),
    )


def describe_launch(plan: Plan, parallel: ParallelRecord, saving: SavingRecord | None) -> ProcessesConfig:
    several = parallel.world_size > 1 and saving is not None
    return ProcessesConfig(
        launcher=" ".join(parallel.launcher),
        expected=parallel.expected,
        preflight=expect_rates(plan, saving) if several else ABSENT,
    )


def build_row_config(plan: Plan) -> RowConfig:
    run = plan.best.execution
    return RowConfig(
        weights=run.weights_dtype,
        batch=plan.case.workload.concurrency,
        positions=plan.case.workload.seq_len,
    )


def list_data_values(planned: Planned) -> dict[str, Any]:
    """The fields of a ``ConfigRecord`` that say where the examples are."""
    data, request, workload = planned.work.data, planned.work.request, planned.plan.case.workload
    kind = data.format if data else "txt"
    values: dict[str, Any] = {"data": data.path if data else None}
    if data and kind == "hub":
        values |= {"data_config": data.config, "data_split": data.split, "data_revision": data.revision}
    if data and workload.task == "sft":
        meaning = "messages" if data.sft_format == "messages" else "text"
        values["columns"] = data.recognised.column_of if data.recognised else {meaning: data.text_column}
    elif data and kind != "txt":
        values["text_column"] = data.text_column
    if workload.task_facts.classifies:
        values["label_column"] = data.label_column if data else request.label_column
    if workload.loss_on is not None:
        values["loss_on"] = workload.loss_on
    return values | {"skip_bad": request.skip_bad}


def list_evaluation_values(request: Request, evaluation: EvaluationRecord | None) -> dict[str, Any]:
    """The fields of a ``ConfigRecord`` that say what is held out."""
    return {
        "eval_data": evaluation.source if evaluation else None,
        "eval_rows": evaluation.rows if evaluation and evaluation.default else None,
        "early_stopping": request.early_stopping,
    }


def build_training_config(planned: Planned, save_steps: int, evaluation: EvaluationRecord | None) -> TrainingConfig:
    plan, workload = planned.plan, planned.plan.case.workload
    scheduler = next((t.scheduler for t in plan.best.members if t.scheduler), "linear")
    return TrainingConfig(
        learning_rate=workload.learning_rate,
        num_train_epochs=workload.epochs,
        max_steps=workload.max_steps or -1,
        warmup_steps=workload.warmup,
        weight_decay=workload.weight_decay,
        seed=workload.seed,
        lr_scheduler_type=scheduler,
        logging_steps=1,
        save_steps=save_steps,
        report_to=planned.work.request.report_to,
        **list_evaluation_arguments(evaluation),
    )


def list_evaluation_arguments(evaluation: EvaluationRecord | None) -> dict[str, Any]:
    """The fields of a ``TrainingConfig`` that say when to evaluate: wherever the run saves, so that the best can be kept."""
    if evaluation is None:
        return {"eval_strategy": "no"}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"} if evaluation.keeps_best else {}
    return {"eval_strategy": "steps", "eval_steps": evaluation.interval, "eval_on_start": True} | best


def build_lora_config(plan: Plan) -> LoraConfig:
    workload = plan.case.workload
    return LoraConfig(
        r=workload.lora_rank,
        lora_alpha=workload.lora_alpha,
        lora_dropout=workload.lora_dropout,
        use_dora=True if workload.adapter == "dora" else ABSENT,
        use_rslora=True if workload.adapter == "rslora" else ABSENT,
    )


def find_seen_memory(case: Case) -> int:
    """Bytes of a device that PyTorch reports."""
    total = case.shared_memory_bytes if case.vendor.reports_shared_memory else None
    return total or case.device_memory_bytes


def describe_fingerprint(plan: Plan) -> MachineConfig:
    """What the guard at the top of the scripts compares the machine with."""
    case = plan.case
    return MachineConfig(
        device=case.vendor.torch_device,
        gpus=ABSENT if case.on_cpu else plan.best.layout.per_node,
        cpus=case.hardware.cpu.budget if case.on_cpu else ABSENT,
        name=ABSENT if case.on_cpu else case.device.name,
        compute_capability=case.device.compute_capability or ABSENT,
        targets=case.vendor.list_targets(case.device) or ABSENT,
        memory_gib=round(find_seen_memory(case) / 2**30, 1),
        needs_gib=round(measure_least(plan) if is_server(plan) else plan.best.estimate.peak_memory_gib, 1),
    )
