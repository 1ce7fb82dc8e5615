from generator.techniques.base import Technique


class NoQuantization(Technique):
    """Serve the weights in the format they compute in."""

    axis = "quantization"
    name = "none"
    baseline = True
    modes = ("infer",)

    def effects(self, case):
        return {"quant": "none"}
