from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class Default(Technique):
    """Leave the number of threads to PyTorch, which counts the machine's cores and ignores a container's quota.

    What it does: one thread per physical core that PyTorch sees.
    When it loses: in a container with a quota: every parallel region waits for a thread that is not running.
    Known problems: torchrun sets OMP_NUM_THREADS=1 for its processes.
    """

    axis = "cpu-threads"
    name = "default"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"threads": case.hardware.cpu.cores if case.on_cpu else None}
