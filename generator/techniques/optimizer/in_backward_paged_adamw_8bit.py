from dataclasses import replace
from typing import ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.optimizer.paged_adamw_8bit import PagedAdamW8bit
from generator.techniques.optimizers import Optimizer
from generator.techniques.traits import Trait


class InBackwardPagedAdamW8bit(Optimizer):
    """8-bit paged AdamW that updates each weight during the backward pass and drops its gradient (bitsandbytes).

    What it does: never holds more than one weight's gradient, and keeps the states in host memory.
    When it loses: wherever gradients and states fit: all states cross the link in every step.
    Known problems: no gradient accumulation, so the micro-batch is the whole batch; gradients are not clipped, their
    norm is known after the updates only; one process; a checkpoint holds the states, and resuming holds them twice.
    """

    name = "in-backward-paged-adamw-8bit"
    optim = "paged_adamw_8bit"
    state = replace(
        PagedAdamW8bit.state,
        lives_on_host=True,
        stores_gradients=False,
        source=f"{PagedAdamW8bit.state.source}; 16 GB of states are not among the 18.9 GiB of its evidence",
    )
    why = "each weight is updated in the backward pass: update_in_backward.py"
    requires = "bitsandbytes"
    accumulates = False
    quality = 2
    quality_note = "optimizer states are kept in 8 bits, and gradients are not clipped by their norm"
    request_only = "gradients are not clipped by their norm"
    excludes: ClassVar = {
        Trait.LOSS_SCALING: "an update in the backward pass sees scaled gradients",
        Trait.COMPILED_GRAPH: "a compiled graph returns all gradients at once",
    }
    evidence = (
        Published(
            "https://github.com/pytorch/torchtune/blob/0031bfb080bd35ec533c412df883cf2bf7bf7fe4/README.md",
            "Llama 3.1 8B, full fine-tuning, 2 x 2048 tokens on one RTX 4090: 18.9 GiB, 1,650 tokens/s",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.train != "full":
            return "gradients and states of adapters are small"
        return super().obstacle(case)

    def conflict(self, other: Technique, case: Case) -> str | None:
        layouts = other.layouts(case)
        if layouts and all(layout.devices > 1 for layout in layouts):
            return "it updates a weight before the processes have exchanged its gradient"
        return None

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        unclipped = make_argument("max_grad_norm", 0.0, "their norm is known after the updates only")
        return replace(
            edits,
            training_arguments=(*edits.training_arguments, unclipped),
            imports=("from update_in_backward import update_in_backward",),
            fragments=("update_in_backward",),
            after_trainer=("update_in_backward(trainer)",),
        )
