"""The user's values: never changed to gain speed. Which of them somebody gave, and which are defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from generator.case.defaults import Origin
from generator.case.workload import Workload
from generator.emit.plan_document import ABSENT, UserValues, ValueRecord, WorkloadRecord

GIVEN, DEFAULT = "given", "default"


OF_BOTH = ("mode", "task", "seq_len")
OF_TRAINING = ("train", "global_batch", "learning_rate", "epochs", "max_steps", "warmup", "seed", "weight_decay")
OF_ADAPTERS = ("adapter", "lora_rank", "lora_alpha", "lora_dropout")
OF_INFERENCE = ("new_tokens", "concurrency", "max_latency", "optimize_for")


def list_user_values(workload: Workload) -> UserValues:
    """Those that this work has: a server learns at no rate."""
    names = [*OF_BOTH, *(OF_TRAINING if workload.mode == "train" else OF_INFERENCE)]
    if workload.mode == "train":
        names += OF_ADAPTERS if workload.train != "full" else ()
        names += ["loss_on"] if workload.loss_on is not None else []
        names = [name for name in names if name != "epochs" or not workload.max_steps]
    return UserValues(**{name: getattr(workload, name) for name in names})


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
