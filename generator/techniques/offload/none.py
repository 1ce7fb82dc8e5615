from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.traits import Trait


class NoOffload(Technique):
    """Everything a step needs stays on the device.

    What it does: nothing crosses the link to the host during a step but the batch.
    When it loses: only where it does not fit.
    Known problems: none that we know of.
    """

    axis = "offload"
    name = "none"
    baseline = True

    def conflict(self, other: Technique, case: Case) -> str | None:
        # the guide: on one GPU, DeepSpeed only slows down what fits without (docs "deepspeed")
        layouts = other.layouts(case) if Trait.DEEPSPEED_ENGINE in other.traits(case) else None
        if layouts and all(x.devices == 1 for x in layouts):
            return "on one device there is nothing to divide: DeepSpeed's stages serve to offload there"
        return None
