"""The user's values: never changed to gain speed. Which of them somebody gave, and which are defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from generator.case.defaults import Origin
from generator.case.workload import Workload
from generator.emit.plan_document import ABSENT, UserValues, ValueRecord, WorkloadRecord

GIVEN, DEFAULT = "given", "default"


def list_user_values(workload: Workload) -> UserValues:
    adapter = workload.train != "full"
    return UserValues(
        mode=workload.mode,
        task=workload.task,
        train=workload.train,
        seq_len=workload.seq_len,
        global_batch=workload.global_batch,
        learning_rate=workload.learning_rate,
        epochs=ABSENT if workload.max_steps else workload.epochs,
        max_steps=workload.max_steps,
        warmup=workload.warmup,
        seed=workload.seed,
        weight_decay=workload.weight_decay,
        loss_on=ABSENT if workload.loss_on is None else workload.loss_on,
        adapter=workload.adapter if adapter else ABSENT,
        lora_rank=workload.lora_rank if adapter else ABSENT,
        lora_alpha=workload.lora_alpha if adapter else ABSENT,
        lora_dropout=workload.lora_dropout if adapter else ABSENT,
    )


def list_defaults(values: UserValues, origins: Mapping[str, Origin]) -> dict[str, str]:
    """Those that nobody gave, and where the default comes from."""
    names = [f.name for f in fields(values) if getattr(values, f.name) is not ABSENT]
    return {name: origins[name].why for name in names if not origins[name].given}


def describe_workload(workload: Workload, origins: Mapping[str, Origin]) -> WorkloadRecord:
    """The workload, each value of the user's with where it comes from."""
    values: dict[str, Any] = {f.name: getattr(workload, f.name) for f in fields(WorkloadRecord)}
    traced: dict[str, Any] = {
        name: ValueRecord(value=values[name], from_=GIVEN if origin.given else DEFAULT, why=origin.why)
        for name, origin in origins.items()
    }
    return WorkloadRecord(**values | traced)
