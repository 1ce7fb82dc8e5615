"""Labels of texts, by a head that is trained."""

from __future__ import annotations

from generator.case.tasks.task import Refusal, Task, name_model
from generator.model import ModelSpec
from generator.model.classifiers import CLASSIFIED, HEAD, NEEDS


def explain_model(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    """Why it has no head for labels, or none that was trained."""
    if needs := NEEDS.get(model.model_type):
        return (
            f"{asked} reads texts alone, and {name_model(model)} reads {needs} besides",
            "give a model of texts, such as a BERT or a Llama",
        )
    if model.model_type not in CLASSIFIED and model.kind not in ("encoder", "decoder"):
        return (
            f"{asked} needs an encoder or a decoder of text, and {name_model(model)} is {model.kind}",
            "give another model, such as a BERT or a Llama",
        )
    if model.model_type not in CLASSIFIED:
        return (
            f"{asked} needs a head for labels, and of {name_model(model)} perfgen knows none in Transformers",
            "give another model, such as a BERT or a Llama",
        )
    if trained and not suits(model):
        return (
            f"{asked} needs trained weights for the labels, and {name_model(model)} has none: its answers would be random",
            "give a classifier, or train one first (--mode train)",
        )
    return None


def suits(model: ModelSpec) -> bool:
    return (model.architecture or "").endswith(HEAD)


TASK = Task(
    name="text-classification",
    title="text classification",
    training="text classification",
    learner="a text classifier",
    model_class="AutoModelForSequenceClassification",
    explain_model=explain_model,
    suits=suits,
    seq_len=512,
    classifies=True,
    row_leaves={
        "batch_work": "serving/batch_work/labels",
        "class_scores": "serving/class_scores",
        "encoder": "serving/encoder",
    },
    example_leaf="label",
)
