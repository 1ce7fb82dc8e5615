"""What a configuration needs and how fast it is: formulas, pure, with the source of every number.

``costmodel`` is the way in. Memory: ``static_memory`` (weights, gradients, optimizer states), ``sharding`` (what FSDP, ZeRO and
DDP make of them), ``activations``, ``loss``, ``memory`` (the moments of a step), ``host``. Time: ``time``, ``comm`` (collectives),
``device`` and ``links`` (rates). ``infer`` has both for generation. Every number is in ``constants``, every optimizer in ``optimizers``.
"""

from generator.cost.costmodel import CostModel

__all__ = ["CostModel"]
