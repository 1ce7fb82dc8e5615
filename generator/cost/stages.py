"""How many layers each stage of a pipeline gets, and what the fullest one holds."""

from __future__ import annotations

from functools import lru_cache

from generator.cost.execution import Execution
from generator.cost.shape import Shape


@lru_cache(maxsize=1024)
def split_layers(layers: int, stages: int, head_layers: float) -> tuple[int, ...]:
    """Layers of every stage so that the slowest is as fast as can be. ``head_layers``: the output layer's work, in layers.

    What the last stage does not get goes to the others, to the later ones first: 1F1B keeps most activations on the early ones.
    """
    best = min(
        range(1, layers - stages + 2),
        key=lambda last: (max(-(-(layers - last) // (stages - 1)), last + head_layers), -last),
    )
    each, more = divmod(layers - best, stages - 1)
    return (*(each + (stage >= stages - 1 - more) for stage in range(stages - 1)), best)


def compute_fullest_share(shape: Shape, run: Execution) -> float:
    """Parameters of the fullest stage, over what each had if all stages had as many.

    The embedding is on the first stage, the output layer on the last; tied, they are one weight that both have.
    """
    if not run.own_loop or run.pp == 1:
        return 1.0
    layers = split_layers(shape.layers, run.pp, shape.head_params / shape.block_params)
    block = shape.block_params
    first, last = layers[0] * block + shape.embedding, layers[-1] * block + shape.head_params
    return max(first, last, max(layers) * block) * run.pp / shape.params
