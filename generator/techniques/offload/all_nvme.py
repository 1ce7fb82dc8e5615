from generator.techniques.base import Published
from generator.techniques.offloading import NvmeOffload


class AllNvme(NvmeOffload):
    """Weights and optimizer states on the host's NVMe disk; they pass through host memory when they are used.

    What it does: fits models whose states exceed device and host memory together.
    When it loses: always against host memory: disks are ten times slower than the link to the host.
    Known problems: DeepSpeed compiles its reader on first use, which takes the CUDA toolkit (nvcc), a C++ compiler and
    libaio-dev.
    """

    name = "all-nvme"
    params = "nvme"
    adds = 2  # weights come over too
    evidence = (
        Published("https://arxiv.org/abs/2104.07857", "ZeRO-Infinity: 1T parameters fine-tuned on one DGX-2 node"),
    )
