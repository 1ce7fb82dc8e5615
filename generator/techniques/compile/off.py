from generator.techniques.base import Technique


class Off(Technique):
    """Run the model operator by operator."""

    axis = "compile"
    name = "off"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case):
        return {"compile": None}
