from generator.techniques.base import Published
from generator.techniques.offload.optimizer_cpu import OptimizerCpu

STATE_BYTES = 16
"""a parameter: float32 weight, gradient and two moments (DeepSpeed docs, memory.rst)"""


class AllNvme(OptimizerCpu):
    """Weights and optimizer states on the host's NVMe disk; they pass through host memory when they are used.

    The last resort: disks are ten times slower than the link to the host. For when host memory is too small. Known problem:
    DeepSpeed compiles its reader on first use, which takes the CUDA toolkit (nvcc), a C++ compiler and libaio-dev.
    """

    name = "all-nvme"
    optimizer = "nvme"
    params = "nvme"
    adds = 2  # weights come over too
    strategies = ("zero3",)
    compiles = True
    evidence = (
        Published("https://arxiv.org/abs/2104.07857", "ZeRO-Infinity: 1T parameters fine-tuned on one DGX-2 node"),
    )

    def lacks(self, case):
        disks = [d for d in case.hardware.disks if d.kind == "nvme"]
        if not disks:
            return "no NVMe disk was found under the working, cache or temporary folder"
        free = [d.free_bytes for d in disks if d.free_bytes is not None]
        needed = STATE_BYTES * case.model.params / case.nodes if case.workload.train == "full" else 0
        if free and max(free) < needed:
            return (
                f"{needed / 2**30:,.0f} GiB of states a node, and its NVMe disk has {max(free) / 2**30:,.0f} GiB free"
            )
        return None

    def place(self, block, case):
        disks = sorted((d for d in case.hardware.disks if d.kind == "nvme"), key=lambda d: -(d.free_bytes or 0))
        return {f"{block}.nvme_path": next((d.path for d in disks if d.path), "nvme")}
