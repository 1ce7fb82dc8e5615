from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits


class Budget(Technique):
    """One compute thread for each physical core that this process may really use (affinity and container quota).

    What it does: sets OMP_NUM_THREADS and torch's threads to the usable cores, which OpenMP does not see in a cgroup.
    When it loses: never by more than a line, and on a whole machine it would only repeat what PyTorch counts itself.
    Known problems: the number is of the planned machine; under another quota it must be planned again.
    """

    axis = "cpu-threads"
    name = "budget"
    modes = ("train", "infer")
    evidence = (
        Published(
            "https://github.com/ollama/ollama/issues/17916",
            "8 threads on a 4-CPU quota: 0.27 tokens/s; 4 threads: 12.07",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if not case.on_cpu or case.portable:
            return "only the CPU that trains needs its threads counted"
        threads = count_threads(case)
        if threads is None:
            return "the usable CPUs could not be read"
        if threads == case.hardware.cpu.cores and case.devices == 1:  # torchrun gives each of several processes one
            return f"PyTorch's own count ({case.hardware.cpu.cores}, the physical cores) is right here"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"threads": count_threads(case)}

    def edits(self, case: Case) -> Edits:
        threads = count_threads(case)
        statement = f"torch.set_num_threads({threads})  # the CPUs this process may use"
        return Edits(
            environment=(("OMP_NUM_THREADS", str(threads)),),
            imports=("import torch",),
            setup=(statement,),
            infer_imports=("import torch",),
            infer_setup=(statement,),
        )


def count_threads(case: Case) -> int | None:
    """Usable CPUs, at most the physical cores: two threads of one core share its arithmetic units. ``None``: not known."""
    cpu = case.hardware.cpu
    return cpu.budget if cpu.budget is None or not cpu.cores else min(cpu.budget, cpu.cores)
