"""What was said, written down."""

from __future__ import annotations

from generator.case.tasks.task import Refusal, Task, name_model
from generator.model import ModelSpec

SPEECH_TYPES = ("whisper",)
"""Model types of our tables that hear and write (Transformers' MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING)."""


def explain_model(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    if suits(model):
        return None
    return f"{asked} needs one of {', '.join(SPEECH_TYPES)}, and {name_model(model)} is none of them", "give one"


def suits(model: ModelSpec) -> bool:
    return model.model_type in SPEECH_TYPES


TASK = Task(
    name="automatic-speech-recognition",
    title="speech recognition",
    model_class="AutoModelForSpeechSeq2Seq",
    explain_model=explain_model,
    suits=suits,
    seq_len=1500,  # where config.json does not say: Whisper's frames of 30 s
    positions="frames of sound",
    generates=True,
    row_leaves={"batch_work": "serving/batch_work/transcripts", "media": "serving/media"},
    rows_together=8,  # beside what it writes it keeps the sound's keys and values (ours)
    column="audio",
    example="some/speech.flac",
    packages=frozenset({"soundfile", "soxr"}),
)
