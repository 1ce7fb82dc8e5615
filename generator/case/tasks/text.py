"""What models of texts are refused for, in the words that their tasks share."""

from __future__ import annotations

from generator.case.tasks.automatic_speech_recognition import SPEECH_TYPES
from generator.case.tasks.task import Refusal
from generator.model import ModelSpec
from generator.model.classifiers import CLASSIFIED
from generator.model.next_token import LEARNS_OWN_TOKEN


def explain_no_decoder(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    """Why the model cannot go on with a text, or ``None``; what perfgen does with it instead."""
    name = f"{model.name} ({model.model_type})"
    if model.kind == "decoder":
        return None if trained else explain_no_next_token(model, asked)
    if model.kind != "encoder":
        return f"{asked} needs a decoder-only model, and {name} is {model.kind}", suggest_use(model, trained)
    if model.model_type not in CLASSIFIED:  # of series, proteins, pages: no encoder of texts alone
        return f"{asked} needs a decoder of text, and {name} is none", suggest_use(model, trained)
    if trained:
        return (
            f"{asked} needs a decoder, and {name} is an encoder",
            "use --task text-classification for a classifier, feature-extraction for embeddings; filling masks is not emitted yet",
        )
    return (
        f"{asked} needs a decoder, and {name} is an encoder: plain text trains it by masked language modelling (masked-lm), which perfgen "
        "does not emit yet",
        "give a decoder; or, for rows that have labels, --task text-classification",
    )


def explain_no_next_token(model: ModelSpec, asked: str) -> Refusal | None:
    """Why a training would teach a decoder to repeat the token that it reads, or ``None``."""
    if model.model_type not in LEARNS_OWN_TOKEN:
        return None
    labelled = "; or, for rows that have labels, --task text-classification" if model.model_type in CLASSIFIED else ""
    return (
        f"{asked} teaches the next token, and the loss that Transformers computes for {model.name} ({model.model_type}) compares each "
        "prediction with the token that it was made from: it would learn to repeat what it reads",
        f"give a decoder whose loss shifts the labels, such as a Llama or a GPT-2{labelled}",
    )


def suggest_use(model: ModelSpec, trained: bool) -> str:
    """What perfgen does with a model that is no model of text, if anything."""
    if model.kind == "vision":
        return "perfgen runs classifiers of images (--mode infer, …ForImageClassification in config.json) and no other model of this kind"
    if model.model_type in SPEECH_TYPES:
        return "perfgen writes down what it hears: --mode infer --task automatic-speech-recognition"
    return f"perfgen does not emit {'inference' if trained else 'training'} for this kind of model yet"
