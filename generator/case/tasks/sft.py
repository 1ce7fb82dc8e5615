"""A language model on examples: messages, prompts with their completions, or texts that are each of their own."""

from __future__ import annotations

from dataclasses import replace

from generator.case.tasks.causal_lm import TASK as CAUSAL_LM

TASK = replace(
    CAUSAL_LM,
    name="sft",
    training="supervised fine-tuning",
    learner="a language model on examples",
    trainer="SFTTrainer",
    example_leaf="messages",
)
