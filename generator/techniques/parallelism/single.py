from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Technique
from generator.techniques.traits import Trait


class Single(Technique):
    """One device, one process.

    What it does: nothing is exchanged.
    When it loses: as soon as a second device brings more than the exchange of gradients costs.
    Known problems: none that we know of.
    """

    axis = "parallelism"
    name = "single"
    modes = ("train", "infer")
    baseline = True
    provides = frozenset({Trait.PACKED_SHARDS})

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return (Layout(),)
