"""Names, places and whatever else a model marks in texts."""

from __future__ import annotations

from generator.case.tasks.task import Refusal, Task, name_model
from generator.model import ModelSpec


def explain_model(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    if suits(model):
        return None
    return (
        f"{asked} needs a model with a trained head for the labels of tokens, and {name_model(model)} has none",
        "give one whose config.json names its class: …ForTokenClassification",
    )


def suits(model: ModelSpec) -> bool:
    return model.kind in ("encoder", "decoder") and (model.architecture or "").endswith("ForTokenClassification")


TASK = Task(
    name="token-classification",
    title="entities in texts",
    model_class="AutoModelForTokenClassification",
    explain_model=explain_model,
    suits=suits,
    seq_len=512,
    row_leaves={"batch_work": "serving/batch_work/entities", "encoder": "serving/encoder"},
    example="Ada Lovelace lived in London.",
)
