"""The user's values: never changed to gain speed. Which of them somebody gave, and which are defaults."""

from __future__ import annotations

from dataclasses import fields

from generator.case.request import Request
from generator.case.workload import Workload
from generator.emit.plan_document import ABSENT, UserValues

WITHOUT_OPTION = ("warmup", "seed", "weight_decay")
"""Values of the user's for which there is no option: config.yaml is where they are changed."""
OPTION_OF = {"lora_alpha": "lora_rank"}
"""Values that follow from the option of another."""


def list_user_values(workload: Workload) -> UserValues:
    adapter = workload.train != "full"
    return UserValues(
        mode=workload.mode,
        task=workload.task,
        train=workload.train,
        seq_len=workload.seq_len,
        global_batch=workload.global_batch,
        learning_rate=workload.learning_rate,
        epochs=workload.epochs,
        max_steps=workload.max_steps,
        warmup=workload.warmup,
        seed=workload.seed,
        weight_decay=workload.weight_decay,
        loss_on=ABSENT if workload.loss_on is None else workload.loss_on,
        lora_rank=workload.lora_rank if adapter else ABSENT,
        lora_alpha=workload.lora_alpha if adapter else ABSENT,
    )


def list_defaults(values: UserValues, request: Request) -> tuple[str, ...]:
    """The names of those that are what they would be had nothing been asked for."""
    unasked = {f.name: f.default for f in fields(Request)}
    names = [f.name for f in fields(values) if getattr(values, f.name) is not ABSENT]
    options = {name: OPTION_OF.get(name, name) for name in names if name not in WITHOUT_OPTION}
    return tuple(n for n in names if n not in options or getattr(request, options[n]) == unasked[options[n]])
