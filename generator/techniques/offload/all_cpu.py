from generator.techniques.base import Published
from generator.techniques.offload.optimizer_cpu import OptimizerCpu


class AllCpu(OptimizerCpu):
    """Weights, gradients and optimizer states in host memory; each layer's weights come over when they are used.

    The device holds activations and a layer at a time. The link to the host sets the pace.
    """

    name = "all-cpu"
    params = "cpu"
    adds = 2  # weights come over too
    strategies = ("zero3", "fsdp2")
    evidence = (
        Published("https://arxiv.org/abs/2104.07857", "ZeRO-Infinity: a model as large as host memory and disk hold"),
    )
