from generator.techniques.base import Published
from generator.techniques.offload.all_nvme import AllNvme


class OptimizerNvme(AllNvme):
    """Optimizer states on the host's NVMe disk, weights on the devices.

    As optimizer-cpu where host memory is too small: the states pass through it piece by piece.
    """

    name = "optimizer-nvme"
    optimizer = "nvme"
    params = "none"
    adds = 1
    evidence = (
        Published("https://arxiv.org/abs/2104.07857", "ZeRO-Infinity: optimizer states stream from NVMe in chunks"),
    )
