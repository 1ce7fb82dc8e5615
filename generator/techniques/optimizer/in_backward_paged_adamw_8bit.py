from dataclasses import replace

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.optimizer.paged_adamw_8bit import PagedAdamW8bit
from generator.techniques.optimizers import UpdatingInBackward


class InBackwardPagedAdamW8bit(UpdatingInBackward):
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
    quality = 2
    quality_note = "optimizer states are kept in 8 bits, and gradients are not clipped by their norm"
    request_only = "gradients are not clipped by their norm"
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

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return replace(
            edits,
            imports=("from update_in_backward import update_in_backward",),
            fragments=("backward_updates", "update_in_backward"),
            after_trainer=("update_in_backward(trainer)",),
        )
