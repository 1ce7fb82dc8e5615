from generator.techniques.base import Published
from generator.techniques.parallelism.zero1 import Zero1


class Zero2(Zero1):
    """ZeRO stage 2 (DeepSpeed): optimizer states and gradients are divided over the devices.

    As stage 1, and each device keeps only its part of the gradients; with accumulation it reduces them every micro-batch. On one
    device it serves to offload the optimizer.
    """

    name = "zero2"
    stage = 2
    least = 1
    evidence = (
        Published("https://arxiv.org/abs/1910.02054", "stage 2: 8 times less memory for states, the traffic of DDP"),
    )
