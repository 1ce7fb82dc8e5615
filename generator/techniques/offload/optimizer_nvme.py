from generator.techniques.base import Published
from generator.techniques.offloading import NvmeOffload


class OptimizerNvme(NvmeOffload):
    """Optimizer states on the host's NVMe disk, weights on the devices.

    What it does: as optimizer-cpu where host memory is too small: the states pass through it piece by piece.
    When it loses: always against host memory: a real NVMe disk reads about 3.5 GB/s and writes 3.
    Known problems: DeepSpeed compiles its reader on first use, which takes the CUDA toolkit (nvcc), a C++ compiler and
    libaio-dev.
    """

    name = "optimizer-nvme"
    adds = 1
    evidence = (
        Published("https://arxiv.org/abs/2104.07857", "ZeRO-Infinity: optimizer states stream from NVMe in chunks"),
    )
