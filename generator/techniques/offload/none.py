from generator.technique import Technique


class NoOffload(Technique):
    """Everything a step needs stays on the device."""

    axis = "offload"
    name = "none"
    baseline = True

    def clash(self, other, case):
        # the guide: on one GPU, DeepSpeed only slows down what fits without (docs "deepspeed")
        if case.devices == 1 and other.id in ("parallelism=zero2", "parallelism=zero3"):
            return "on one device there is nothing to divide: DeepSpeed's stages serve to offload there"
        return None
