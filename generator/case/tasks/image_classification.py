"""Labels of images."""

from __future__ import annotations

from generator.case.tasks.task import Refusal, Task, name_model
from generator.model import ModelSpec


def explain_model(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    if suits(model):
        return None
    return (
        f"{asked} needs a classifier of images, and {name_model(model)} is none",
        "give one, such as a ViT, whose config.json names its class: …ForImageClassification",
    )


def suits(model: ModelSpec) -> bool:
    return model.kind == "vision" and (model.architecture or "").endswith("ForImageClassification")


TASK = Task(
    name="image-classification",
    title="image classification",
    model_class="AutoModelForImageClassification",
    explain_model=explain_model,
    suits=suits,
    seq_len=197,  # where config.json does not say: the patches of 224 pixels, 16 each way, with the class token (ViT)
    positions="patches of an image",
    row_leaves={
        "batch_work": "serving/batch_work/images",
        "class_scores": "serving/class_scores",
        "media": "serving/media",
    },
    column="image",
    example="some/photo.png",
    packages=frozenset({"pillow"}),
)
