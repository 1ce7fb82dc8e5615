from generator.techniques.base import Published
from generator.techniques.parallelism.zero1 import Zero1
from generator.techniques.traits import Trait


class Zero2(Zero1):
    """ZeRO stage 2 (DeepSpeed): optimizer states and gradients are divided over the devices.

    What it does: as stage 1, and each device keeps only its part of the gradients; on one device it serves to offload
    the optimizer.
    When it loses: with accumulation: it reduces the gradients every micro-batch.
    Known problems: as stage 1; with the optimizer offloaded the float32 sums of the gradients stay on the device, 4 bytes
    per parameter divided by the devices, and go to the host once a step.
    """

    name = "zero2"
    stage = 2
    least = 1
    provides = frozenset({Trait.OPTIMIZER_OFFLOAD})
    evidence = (
        Published("https://arxiv.org/abs/1910.02054", "stage 2: 8 times less memory for states, the traffic of DDP"),
    )
