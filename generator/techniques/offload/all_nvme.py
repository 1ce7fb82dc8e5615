from generator.technique import Published
from generator.techniques.offload.optimizer_cpu import OptimizerCpu


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
        if not any(d.kind == "nvme" for d in case.hardware.disks):
            return "no NVMe disk was found under the working, cache or temporary folder"
        return None

    def place(self, block, case):
        disks = [d for d in case.hardware.disks if d.kind == "nvme"]
        return {f"{block}.nvme_path": next((d.path for d in disks if d.path), "nvme")}
