"""What every optimizer technique is made of: a value of ``TrainingArguments.optim``, and what that value needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits, make_argument


class Optimizer(Technique):
    """Base of the optimizers.

    ``optim`` is the value of ``TrainingArguments.optim``, ``why`` the comment beside it, ``requires`` the distribution
    that it needs, ``arguments`` further TrainingArguments that it cannot do without. Bytes of state and passes of a
    step stand in generator/cost/optimizers.py, under ``name``.
    """

    axis = "optimizer"
    optim: ClassVar[str]
    why: ClassVar[str] = ""
    requires: ClassVar[str | None] = None
    arguments: ClassVar[Mapping[str, object]] = {}

    def obstacle(self, case: Case) -> str | None:
        return case.stack.why_missing(self.requires) if self.requires else None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"optimizer": self.name, "optimizer_fused": False}

    def edits(self, case: Case) -> Edits:
        more = tuple(make_argument(name, value) for name, value in self.arguments.items())
        return Edits(
            training_arguments=(make_argument("optim", self.optim, self.why), *more),
            requirements=(self.requires,) if self.requires else (),
        )
