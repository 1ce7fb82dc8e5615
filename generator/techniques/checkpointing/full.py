from typing import ClassVar

from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument
from generator.techniques.launch import is_by_accelerate


class Full(Technique):
    """Keep only the input of each layer and compute the rest again in the backward pass.

    Activation memory falls to one hidden state a layer plus one layer's insides; the forward pass runs twice. The numbers
    are the same. Loses whenever everything fits without it.
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

    def obstacle(self, case):
        if case.model.layers < 2 * self.every:
            return f"the model has {case.model.layers} layers: nothing to gain"
        return None

    def effects(self, case):
        return {"checkpoint_every": self.every}

    def edits(self, case):
        if is_by_accelerate(case.layout) and case.workload.train == "full":
            return by_fsdp(case)
        kwargs = {"use_reentrant": False}
        if self.every > 1:
            kwargs["every_n_layers"] = self.every
        return Edits(
            training_arguments=(
                argument("activation_checkpointing", True, self.comment(case)),
                argument("activation_checkpointing_kwargs", kwargs),
            )
        )

    def comment(self, case) -> str:
        return "recompute activations in the backward pass"


def by_fsdp(case) -> Edits:
    """FSDP's own: the Trainer's would gather each layer's weights once more. Not with adapters, whose names its wrappers change,
    so that PEFT finds none to save and writes an empty file (seen with PEFT 0.21.2)."""
    quiet = (argument("activation_checkpointing", False, "FSDP does it: accelerate.yaml"),)
    return Edits(
        accelerate=(("fsdp_config.fsdp_activation_checkpointing", True),),
        training_arguments=quiet if case.workload.task == "sft" else (),  # TRL's default is on
    )
