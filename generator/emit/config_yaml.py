"""config.yaml: every value that comes from outside."""

from __future__ import annotations

from generator.decide.plan import Plan, Planned


def build_config(planned: Planned) -> dict:
    """config.yaml: every value that comes from outside, and of those the ones that this project reads."""
    plan, source, request = planned.plan, planned.work.source, planned.work.request
    training = plan.case.workload.mode == "train"
    found: dict = {"model": "sample" if request.model is None else source.path}
    if source.kind == "hub":
        found["revision"] = source.revision
    if request.tokenizer is not None:
        found["tokenizer"] = request.tokenizer
    if training:
        found |= build_data_config(planned) | {"output_dir": "runs"} | build_training_config(plan)
    elif plan.case.workload.task == "text-classification":
        found["seq_len"] = plan.case.workload.seq_len
    if not plan.case.portable:
        found["machine"] = describe_fingerprint(plan)
    return found


def build_data_config(planned: Planned) -> dict:
    data, request, workload = planned.work.data, planned.work.request, planned.plan.case.workload
    kind = data.format if data else "txt"
    sample = request.model is None and not request.data
    found: dict = {"data": "sample/text.txt" if sample else data.path if data else None}
    if kind == "hub":
        found["data_revision"] = None
    if data and kind != "txt":
        found["text_column"] = data.text_column
    if workload.task == "text-classification":
        found["label_column"] = data.label_column if data else request.label_column
    return found | {"skip_bad": request.skip_bad, "seq_len": workload.seq_len}


def build_training_config(plan: Plan) -> dict:
    """``training`` holds names of TrainingArguments; train.py passes them on as they are."""
    workload = plan.case.workload
    schedule_free = plan.best.choice["optimizer"] == "schedule-free"
    found: dict = {
        "training": {
            "learning_rate": workload.learning_rate,
            "num_train_epochs": workload.epochs,
            "max_steps": workload.max_steps or -1,
            "warmup_steps": workload.warmup,
            "weight_decay": workload.weight_decay,
            "seed": workload.seed,
            "lr_scheduler_type": "constant" if schedule_free else "linear",
            "logging_steps": 1,
            "save_steps": SAVE_STEPS,
        }
    }
    if workload.train != "full":
        found["lora"] = {"r": workload.lora_rank, "lora_alpha": workload.lora_alpha, "lora_dropout": LORA_DROPOUT}
    return found


LORA_DROPOUT = 0.05
"""The value of the QLoRA paper for its smaller models (https://arxiv.org/abs/2305.14314); yours to change."""
SAVE_STEPS = 500
"""TrainingArguments' own default; yours to change."""


def describe_fingerprint(plan: Plan) -> dict:
    """What the guard at the top of the scripts compares the machine with."""
    case = plan.case
    have = {
        "memory_gib": round(case.device_memory_bytes / 2**30, 1),
        "needs_gib": round(plan.best.estimate.peak_memory_gib, 1),
    }
    if case.on_cpu:
        return {"device": "cpu", "cpus": case.hardware.cpu.budget} | have
    gpu = {"name": case.device.name, "compute_capability": case.device.compute_capability}
    return {"device": "cuda", "gpus": plan.best.layout.per_node} | gpu | have
