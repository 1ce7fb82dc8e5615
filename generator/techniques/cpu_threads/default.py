from generator.techniques.base import Technique


class Default(Technique):
    """Leave the number of threads to PyTorch, which counts the machine's cores and ignores a container's quota."""

    axis = "cpu-threads"
    name = "default"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case):
        # PyTorch starts one thread a physical core that it sees; the quota it does not see
        return {"threads": case.hardware.cpu.cores if case.on_cpu else None}
