"""What the forms share that divide one copy of the model, and train it with a loop of their own (templates/fragments/loop.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import explain_one_device
from generator.techniques.precision.fp16 import explain_missing_fp16
from generator.techniques.traits import Trait

RUN_TYPES = frozenset(
    {"deepseek_v3", "glm4", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3"}
)
"""Model types that were trained so on several processes, and had the losses of one (tests/test_loop_projects.py)."""
WHOLE_LAYERS_TYPES = RUN_TYPES | {"gemma3_text"}
"""Where each process has all layers: each kind of Gemma 3's rotates positions in its own way."""
GATHERED = "Transformers' plan gathers {what} of its layers on every tensor part, which no price is known of"
TENSOR_FAULTS = {
    "glm4": GATHERED.format(what="the gate"),
    "llama4_text": "its tensor parts end in an error of autograd (Transformers 5.23)",
    "olmo2": GATHERED.format(what="queries, keys and values"),
    "phi3": GATHERED.format(what="queries, keys, values and the gate"),
}
"""Of the model types that were tried in tensor parts."""


def explain_windows(case: Case) -> str | None:
    """Why attention that is called without a mask would not be the model's own."""
    windows = [kind.window for kind in case.model.attended if kind.window and kind.window < case.workload.seq_len]
    return f"it attends to all earlier tokens, and this model to {min(windows)}" if windows else None


def divides_tokens(case: Case) -> bool:
    """Whether tensor parts divide the tokens, too, between their products (templates/fragments/token_parts.py): of experts
    Transformers' plans sum what each part computes of all tokens."""
    return not case.model.experts


class Looped(Technique):
    """Base of the forms that the Trainer does not run, or whose states it does not save.

    ``model_types`` are those that were run; others are priced.
    """

    axis = "parallelism"
    model_types: ClassVar[frozenset[str]] = RUN_TYPES
    faults: ClassVar[Mapping[str, str]] = {}
    """why a model type that was tried is not among them"""
    trained: ClassVar[tuple[str, ...]] = ("full",)
    adapters: ClassVar[tuple[str, ...]] = ("lora", "rslora")
    adapts_mixtures: ClassVar[bool] = False
    """whether adapters of models with experts were run so"""
    last_resort = 1  # run on CPUs over gloo, never on GPUs
    adds = 2  # loop.py, and what it saves with
    provides = frozenset({Trait.OWN_LOOP})

    def obstacle(self, case: Case) -> str | None:
        return (
            explain_one_device(case) or self.explain_model(case) or (None if self.layouts(case) else self.uneven(case))
        )

    def rate_resort(self, case: Case) -> int:
        """As far as offloading where fp16 alone uses tensor cores: the loop scales no loss, and would leave them idle."""
        return self.last_resort + (case.workload.mode == "train" and explain_missing_fp16(case) is None)

    def traits(self, case: Case) -> frozenset[Trait]:
        """What serves has no loop."""
        return self.provides if case.workload.mode == "train" else self.provides - {Trait.OWN_LOOP}

    def explain_model(self, case: Case) -> str | None:
        """Why this model cannot be divided so, or ``None``."""
        return None

    def uneven(self, case: Case) -> str:
        return "nothing divides evenly"

    def explain_unemitted(self, case: Case) -> str | None:
        workload, model = case.workload, case.model
        if workload.mode != "train":
            return "the engines divide a served model"
        if workload.train not in self.trained:
            return f"it was run with --train {' and '.join(self.trained)}, not with {workload.train}"
        if workload.train != "full" and workload.adapter not in self.adapters:
            return f"it was run with --adapter {' and '.join(self.adapters)}, not with {workload.adapter}"
        if workload.train != "full" and model.experts and not self.adapts_mixtures:
            return "PEFT makes the adapters of all experts together, and each of its processes would have some of the experts"
        if workload.task not in ("causal-lm", "sft"):
            return f"its loop trains causal-lm and sft, not {workload.task}"
        if model.model_type in self.faults:
            return self.faults[model.model_type]
        if model.model_type not in self.model_types:
            return f"it was run with {', '.join(sorted(self.model_types))}, not with {model.model_type}"
        return None

    def edits(self, case: Case) -> Edits:
        return Edits(launcher=launch_with_torchrun(case), environment=restrict_links(case))
