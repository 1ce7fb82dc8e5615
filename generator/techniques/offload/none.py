from generator.techniques.base import Technique


class NoOffload(Technique):
    """Everything a step needs stays on the device."""

    axis = "offload"
    name = "none"
    baseline = True

    def clash(self, other, case):
        # the guide: on one GPU, DeepSpeed only slows down what fits without (docs "deepspeed")
        if other.id in ("parallelism=zero2", "parallelism=zero3") and all(x.devices == 1 for x in other.layouts(case)):
            return "on one device there is nothing to divide: DeepSpeed's stages serve to offload there"
        return None
