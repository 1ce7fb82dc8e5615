from generator.techniques.base import Technique


class Dynamic(Technique):
    """Keys and values grow by one token a step."""

    axis = "cache"
    name = "dynamic"
    baseline = True
    modes = ("infer",)

    def obstacle(self, case):
        return no_generation(case)

    def effects(self, case):
        return {"cache": "dynamic"}


def no_generation(case) -> str | None:
    return "a classifier generates nothing" if case.workload.task == "text-classification" else None
