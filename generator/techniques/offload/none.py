from generator.technique import Technique


class NoOffload(Technique):
    """Everything a step needs stays on the device."""

    axis = "offload"
    name = "none"
    baseline = True
