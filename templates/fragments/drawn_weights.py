"""Random weights that the first process alone draws, and the others are given (FSDP2)."""

from contextlib import nullcontext

from accelerate import init_empty_weights
from transformers import PreTrainedModel

from read_once import hold_places


def draw_once(auto, config, is_first: bool, **keywords) -> PreTrainedModel:
    """Accelerate sends all processes their parts: a node would hold a whole model for each of its devices."""
    with nullcontext() if is_first else init_empty_weights():
        model = auto.from_config(config, **keywords)
    model.tie_weights()  # which init_empty_weights has made two
    hold_places(model)
    return model
