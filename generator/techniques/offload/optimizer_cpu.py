from typing import ClassVar

from generator.techniques.base import Published
from generator.techniques.offloading import CANNOT, Offload
from generator.techniques.traits import Trait


class OptimizerCpu(Offload):
    """Optimizer states and float32 master weights in host memory, updated by the CPU.

    What it does: 18 (ZeRO-2) or 20 (ZeRO-3) bytes per parameter move to the host; every step sends gradients there and
    weights back. ZeRO-2 sums float32 gradients on the device, ZeRO-3 on the host.
    When it loses: whenever the states fit the devices, divided or not: the CPU's update and the link set the pace.
    Known problems: pinned host memory may be limited (`ulimit -l`); DeepSpeed's own CPU optimizer has to be compiled,
    so PyTorch's is used.
    """

    name = "optimizer-cpu"
    optimizer = "cpu"
    needs: ClassVar = {Trait.OPTIMIZER_OFFLOAD: CANNOT}
    evidence = (Published("https://arxiv.org/abs/2101.06840", "ZeRO-Offload: 13B parameters on one GPU of 32 GB"),)
