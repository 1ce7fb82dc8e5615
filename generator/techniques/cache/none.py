from generator.techniques.base import Technique


class NoCache(Technique):
    """No cache: one forward pass is the whole answer."""

    axis = "cache"
    name = "none"
    modes = ("infer",)

    def obstacle(self, case):
        if case.workload.task != "text-classification":
            return "generation would compute every past token again"
        return None

    def effects(self, case):
        return {"cache": "none"}
