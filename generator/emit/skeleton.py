"""What a project has whose training is not Trainer's: its leaves, and of config.yaml what its loop reads."""

from __future__ import annotations

from dataclasses import fields, replace

from generator.case.tasks import find_task
from generator.case.vendors import Skeleton
from generator.decide.plan import Plan
from generator.emit.modules import COMPRESSIBLE, LABELS, NAMES_CLASSES
from generator.emit.plan_document import ABSENT, ConfigRecord, GraphsConfig, ProjectPart, TrainingConfig

READ = (
    *("learning_rate", "num_train_epochs", "max_steps", "warmup_steps", "weight_decay", "seed", "lr_scheduler_type"),
    *("logging_steps", "save_steps", "report_to", "eval_strategy", "eval_steps"),
)
"""Names under ``training`` that static_run.py has."""
CONVERSATIONS = "sequences/conversations"
"""rows of a tokenizer that has no chat template, or that nobody could look at"""
SHARED = (
    *("config_file", "finished_runs", "first_example", "infer_report", "lock"),
    *("masking", "parts", "quiet_imports", "sources", "static_run", "terminal"),
)


def list_skeleton_modules(project: ProjectPart, skeleton: Skeleton) -> dict[str, str]:
    """Module name to leaf, without ``.py``."""
    modules = {name: name for name in SHARED} | {"machine": f"machine/{project.guard}"} | dict(skeleton.leaves)
    if project.contained:
        modules["lock_image"] = "lock_image"
    modules["sequences"] = skeleton.sequences[project.task]
    if project.sft_format == "messages" and not project.chat_template:
        modules |= {"chat_template": "chat_template", "sequences": CONVERSATIONS}
    if project.data_format != "hub":
        modules["rows"] = f"rows/{project.data_format}"
    if project.data_format in COMPRESSIBLE:
        modules["open_data"] = "open_data"
    if project.example_leaf is not None:
        modules |= {"examples": f"examples/{project.example_leaf}", "fields": "fields"}
    if find_task(project.task).classifies and project.data_format in NAMES_CLASSES:
        modules["class_names"] = "class_names"
    if project.task == "sft":
        modules |= {"labels": LABELS[project.sft_format or "messages"], "token_edges": "token_edges"}
    return dict(sorted(modules.items()))


def keep_known(config: ConfigRecord, plan: Plan) -> ConfigRecord:
    """Without what nothing reads there, and with what its graphs are made for."""
    skeleton, run = plan.case.skeleton, plan.best.execution
    assert skeleton is not None
    dropped = {field.name: ABSENT for field in fields(TrainingConfig) if field.name not in READ}
    graphs = GraphsConfig(
        global_batch=plan.case.workload.global_batch,
        multiple=skeleton.multiple,
        recompute=plan.best.choice["checkpointing"] != "off",
        arguments={
            "per_device_train_batch_size": run.micro_batch,
            "gradient_accumulation_steps": run.accumulation,
            "bf16": run.autocast_dtype == "bfloat16",
        },
    )
    return replace(
        config,
        training=replace(config.training, **dropped),
        graphs=graphs,
        early_stopping=ABSENT,
        first_step=ABSENT,
    )
