"""A language model on plain text, which is one stream."""

from __future__ import annotations

from generator.case.tasks.task import Refusal, Task
from generator.case.tasks.text import explain_no_decoder
from generator.model import ModelSpec


def explain_model(model: ModelSpec, asked: str, trained: bool) -> Refusal | None:
    return explain_no_decoder(model, "generating text" if trained else asked, trained)


TASK = Task(
    name="causal-lm",
    title="text generation",
    training="causal language modelling",
    learner="a language model on plain text",
    model_class="AutoModelForCausalLM",
    explain_model=explain_model,
    seq_len=2048,
    writes=True,
    generates=True,
)
