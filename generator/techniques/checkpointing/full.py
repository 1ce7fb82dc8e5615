from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.launch import is_by_accelerate
from generator.techniques.traits import Trait


class Full(Technique):
    """Keep only the input of each layer and compute the rest again in the backward pass.

    What it does: activation memory falls to one hidden state per layer and one layer's insides; the numbers are the
    same.
    When it loses: whenever everything fits without it: the forward pass runs twice, about 20 % of a step.
    Known problems: switches the key-value cache off; under FSDP it belongs in FSDP's own settings, else each layer's
    weights are gathered once more.
    """

    axis = "checkpointing"
    name = "full"
    every: ClassVar[int] = 1
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/v4.41.3/en/perf_train_gpu_one#gradient-checkpointing",
            "about 20 % slower",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.model.layers < 2 * self.every:
            return f"the model has {case.model.layers} layers: nothing to gain"
        return None

    def traits(self, case: Case) -> frozenset[Trait]:
        """With adapters the Trainer recomputes, under FSDP too, and may skip layers."""
        return self.provides if case.workload.train == "full" else self.provides - {Trait.PARTIAL_RECOMPUTATION}

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"checkpoint_every": self.every}

    def edits(self, case: Case) -> Edits:
        if is_by_accelerate(case.layout) and case.workload.train == "full":
            return make_fsdp_recomputation(case)
        return Edits(
            training_arguments=(
                make_argument("activation_checkpointing", True, self.write_comment(case)),
                make_argument("activation_checkpointing_kwargs", self.list_settings(case)),
            )
        )

    def list_settings(self, case: Case) -> dict[str, object]:
        return {"use_reentrant": False} | ({"every_n_layers": self.every} if self.every > 1 else {})

    def write_comment(self, case: Case) -> str:
        return "recompute activations in the backward pass"


def make_fsdp_recomputation(case: Case) -> Edits:
    """FSDP's own: the Trainer's would gather each layer's weights once more. Not with adapters, whose names its wrappers change,
    so that PEFT finds none to save and writes an empty file (seen with PEFT 0.21.2)."""
    quiet = (make_argument("activation_checkpointing", False, "FSDP does it: accelerate.yaml"),)
    return Edits(
        accelerate=(("fsdp_config.fsdp_activation_checkpointing", True),),
        training_arguments=quiet if case.workload.task == "sft" else (),  # TRL's default is on
    )
