"""Embeddings of texts."""

from __future__ import annotations

from generator.case.tasks.task import Refusal, Task, name_model
from generator.model import ModelSpec


def explain_model(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    if model.kind in ("encoder", "decoder"):
        return None
    return f"{asked} needs a model of texts, and {name_model(model)} is {model.kind}", "give one, such as a BERT"


def suits(model: ModelSpec) -> bool:
    return model.kind == "encoder" and (model.architecture or "").endswith("Model")


TASK = Task(
    name="feature-extraction",
    title="embeddings of texts",
    model_class="AutoModel",
    explain_model=explain_model,
    suits=suits,
    seq_len=512,
    row_leaves={
        "batch_work": "serving/batch_work/embeddings",
        "encoder": "serving/encoder",
        "pooling": "serving/pooling",
    },
)
