from generator.case.optimizer_states import ADAM
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer
from generator.techniques.traits import Trait


class AdamW(Optimizer):
    """AdamW, one kernel for each operation and group of tensors.

    What it does: two states per trained parameter, 8 bytes in 32 bits.
    When it loses: against the fused kernel, in time and in temporaries as large as the gradients.
    Known problems: none that we know of; it is for devices that the fused kernel refuses (XLA).
    """

    name = "adamw"
    optim = "adamw_torch"
    state = ADAM
    provides = frozenset({Trait.TORCH_ADAMW})
    evidence = (
        Published(
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html",
            "the fused implementation is usually the fastest, then foreach, then the for-loop",
        ),
    )
