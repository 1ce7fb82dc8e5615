from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class Default(Technique):
    """Leave the number of threads to PyTorch, which counts the machine's cores and ignores a container's quota.

    What it does: one thread per physical core that PyTorch sees; of several processes of a node one each, by torchrun.
    When it loses: in a container with a quota: every parallel region waits for a thread that is not running. Where
    torchrun starts several processes of several cores each.
    Known problems: a number in OMP_NUM_THREADS of whoever starts it is taken instead.
    """

    axis = "cpu-threads"
    name = "default"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case: Case) -> Mapping[str, Any]:
        if not case.on_cpu:
            return {"threads": None}
        # torch/distributed/run.py: OMP_NUM_THREADS=1 where nobody set it and a node has more than one process
        return {"threads": 1 if case.layout.per_node > 1 else case.hardware.cpu.cores}
