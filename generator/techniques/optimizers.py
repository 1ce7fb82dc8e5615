"""What every optimizer technique is made of: a value of ``TrainingArguments.optim``, and what that value needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from generator.case.case import Case
from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait


class Optimizer(Technique):
    """Base of the optimizers.

    ``optim`` is the value of ``TrainingArguments.optim``, ``why`` the comment beside it, ``requires`` the distribution
    that it needs, ``arguments`` further TrainingArguments that it cannot do without. ``projectors`` are classes, each
    with its module, of objects that it keeps in its states. ``state`` is what the cost model knows of it: bytes per parameter and
    passes of a step.
    """

    axis = "optimizer"
    optim: ClassVar[str]
    state: ClassVar[OptimizerState]
    why: ClassVar[str] = ""
    requires: ClassVar[str | None] = None
    arguments: ClassVar[Mapping[str, object]] = {}
    projectors: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Raises ``TypeError`` at import for one that the cost model could not price."""
        super().__init_subclass__()
        if hasattr(cls, "name") and not hasattr(cls, "state"):
            raise TypeError(
                f"{cls.__name__} has no state: add state = OptimizerState(...) (generator/case/optimizer_states.py), what it keeps per"
                " trained parameter (full_states in the parameter's dtype, or fixed_bytes), how often its step reads or writes an"
                " array as large as the parameters (step_passes), and the source of both"
            )

    def obstacle(self, case: Case) -> str | None:
        return case.stack.why_missing(self.requires) if self.requires else None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"optimizer": self.state, "optimizer_fused": False}

    def edits(self, case: Case) -> Edits:
        more = tuple(make_argument(name, value) for name, value in self.arguments.items())
        edits = Edits(
            training_arguments=(make_argument("optim", self.optim, self.why), *more),
            requirements=(self.requires,) if self.requires else (),
        )
        if not self.projectors:
            return edits
        imports = (f"from {module} import {name}" for name, module in self.projectors.items())
        return replace(
            edits,
            imports=(*imports, "from projections import RestoreProjections"),
            fragments=("projections",),
            callbacks=(f"RestoreProjections({', '.join(self.projectors)})",),
        )


class UpdatingInBackward(Optimizer):
    """Base of those that update each weight in the backward pass, as soon as its gradient is there: no gradient outlives it."""

    accumulates = False
    excludes: ClassVar = {
        Trait.LOSS_SCALING: "an update in the backward pass sees scaled gradients",
        Trait.COMPILED_GRAPH: "a compiled graph returns all gradients at once",
    }

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
            imports=("from backward_updates import check_backward_updates",),
            fragments=("backward_updates",),
            after_trainer=("check_backward_updates(trainer)",),
        )


class ProjectingOptimizer(Optimizer):
    """Base of those that project the gradients of ``nn.Linear``: all in the numbered layers, whatever an architecture calls them."""

    targets: ClassVar[str] = r".*\.\d+\..*"

    def obstacle(self, case: Case) -> str | None:
        if case.model.model_type in CONV1D and case.workload.train == "full":
            return f"{case.model.model_type} has no nn.Linear in its layers, and the Trainer projects no other weights"
        return super().obstacle(case)


CONV1D = ("gpt2", "gpt-sw3", "openai-gpt")
"""Types whose products are Transformers' ``Conv1D``."""
