from typing import ClassVar

from generator.techniques.base import Published
from generator.techniques.offloading import CANNOT, Offload
from generator.techniques.traits import Trait


class AllCpu(Offload):
    """Weights, gradients and optimizer states in host memory; each layer's weights come over when they are used.

    What it does: the device holds activations and a layer at a time.
    When it loses: whenever less is enough: the link to the host sets the pace.
    Known problems: takes 22 bytes of host memory per parameter under DeepSpeed with 16-bit weights, 16 under FSDP, which
    offloads all or nothing and sends float32 weights and gradients.
    """

    name = "all-cpu"
    optimizer = "cpu"
    params = "cpu"
    adds = 2  # weights come over too
    needs: ClassVar = {Trait.WEIGHTS_OFFLOAD: CANNOT}
    evidence = (
        Published("https://arxiv.org/abs/2104.07857", "ZeRO-Infinity: a model as large as host memory and disk hold"),
    )
