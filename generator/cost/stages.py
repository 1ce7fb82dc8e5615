"""How many layers each stage of a pipeline gets."""

from __future__ import annotations


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
