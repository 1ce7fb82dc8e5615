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


def list_stages(shape: Shape, run: Execution) -> tuple[int, ...]:
    """Layers of each stage, as the loop divides them (templates/fragments/division/pipeline.py)."""
    return split_layers(shape.layers, run.pp, shape.head_params / shape.block_params)


def divides_unevenly(run: Execution) -> bool:
    """Megatron and others are priced with as many layers on each stage."""
    return run.own_loop and run.pp > 1


def compute_fullest_share(shape: Shape, run: Execution) -> float:
    """Parameters of the fullest stage, over what each had if all stages had as many.

    The embedding is on the first stage, the output layer on the last; tied, they are one weight that both have.
    """
    if not divides_unevenly(run):
        return 1.0
    layers, block = list_stages(shape, run), shape.block_params
    first, last = layers[0] * block + shape.embedding, layers[-1] * block + shape.head_params
    return max(first, last, max(layers) * block) * run.pp / shape.params


def compute_most_layers_share(shape: Shape, run: Execution) -> float:
    """Layers of the stage that has most, over what each had if all stages had as many: adapters are in layers alone.

    It need not be the stage that is fullest of weights: that may have the embedding, and a layer less.
    """
    return max(list_stages(shape, run)) * run.pp / shape.layers if divides_unevenly(run) else 1.0


def count_kept_layers(shape: Shape, run: Execution) -> float:
    """Layers whose activations one stage keeps at once, of all its micro-batches under way: the first has started most."""
    if not divides_unevenly(run):
        return count_under_way(run) * shape.layers / run.pp
    return float(max(min(run.pp - stage, run.accumulation) * n for stage, n in enumerate(list_stages(shape, run))))


def count_under_way(run: Execution) -> int:
    """Micro-batches that the first stage has started when the first one comes back (1F1B)."""
    return min(run.pp, run.accumulation)
