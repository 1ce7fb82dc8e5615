from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits


class Budget(Technique):
    """One compute thread for each physical core that this process may really use (affinity and container quota).

    OpenMP ignores a cgroup quota: with more threads than CPUs, every parallel region waits for a thread that is not running.
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

    def obstacle(self, case):
        if not case.on_cpu or case.portable:
            return "only the CPU that trains needs its threads counted"
        if case.hardware.cpu.budget is None:
            return "the usable CPUs could not be read"
        if threads(case) == case.hardware.cpu.cores:
            return f"PyTorch's own count ({case.hardware.cpu.cores}, the physical cores) is right here"
        return None

    def effects(self, case):
        return {"threads": threads(case)}

    def edits(self, case):
        count = threads(case)
        return Edits(
            environment=(("OMP_NUM_THREADS", str(count)),),
            imports=("import torch",),
            setup=(f"torch.set_num_threads({count})  # the CPUs this process may use",),
            infer_imports=("import torch",),
            infer_setup=(f"torch.set_num_threads({count})  # the CPUs this process may use",),
        )


def threads(case) -> int:
    """Usable CPUs, at most the physical cores: two threads of one core share its arithmetic units."""
    cpu = case.hardware.cpu
    return min(cpu.budget, cpu.cores) if cpu.cores else cpu.budget
