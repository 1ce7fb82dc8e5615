from typing import ClassVar

from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument


class AdamW(Technique):
    """AdamW, one kernel for each operation and group of tensors.

    Two fp32 states: 8 bytes a trained parameter, and temporaries as large as the gradients. For devices that the fused kernel
    refuses.
    """

    axis = "optimizer"
    name = "adamw"
    optim: ClassVar[str] = "adamw_torch"
    """the value of TrainingArguments.optim"""
    why: ClassVar[str] = ""
    requires: ClassVar[str | None] = None
    """the distribution it needs"""
    evidence = (
        Published(
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html",
            "the fused implementation is usually the fastest, then foreach, then the for-loop",
        ),
    )
    arguments: ClassVar[dict[str, object]] = {}
    """further TrainingArguments it cannot do without"""

    def obstacle(self, case):
        return case.stack.why_missing(self.requires) if self.requires else None

    def effects(self, case):
        return {"optimizer": self.name, "optimizer_fused": False}

    def edits(self, case):
        more = tuple(argument(name, value) for name, value in self.arguments.items())
        return Edits(
            training_arguments=(argument("optim", self.optim, self.why), *more),
            requirements=(self.requires,) if self.requires else (),
        )
