from generator.case.layout import Layout
from generator.techniques.base import Technique


class Single(Technique):
    """One device, one process.

    Nothing is exchanged. Loses as soon as a second device brings more than the exchange of gradients costs.
    """

    axis = "parallelism"
    name = "single"
    modes = ("train", "infer")
    baseline = True

    def layouts(self, case):
        return (Layout(),)
