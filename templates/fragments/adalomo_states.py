"""AdaLomo's states where every optimizer of PyTorch has its own: elsewhere no checkpoint holds them."""

import torch
from lomo_optim import AdaLomo
from transformers import Trainer

KINDS = ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")


def keep_states(trainer: Trainer) -> None:
    """Its moments by weight, and the number of its steps, which weighs them, are saved and loaded."""
    optimizer = trainer.create_optimizer()
    if not isinstance(optimizer, AdaLomo):  # --optim may name another
        return
    link_states(optimizer)
    optimizer.register_state_dict_pre_hook(note_steps)
    optimizer.register_load_state_dict_pre_hook(copy_states)
    optimizer.register_load_state_dict_post_hook(link_states)


def link_states(optimizer: AdaLomo) -> None:
    """The very tensors that it updates."""
    for name, weight in optimizer.model.named_parameters():
        optimizer.state[weight] = {kind: kept[name] for kind in KINDS if name in (kept := getattr(optimizer, kind))}


def note_steps(optimizer: AdaLomo) -> None:
    optimizer.param_groups[0]["step_num"] = optimizer.step_num


def copy_states(optimizer: AdaLomo, saved: dict) -> None:
    """As they were saved: PyTorch's own loading casts them to the dtype of the weights."""
    optimizer.step_num = saved["param_groups"][0]["step_num"]
    places = [place for group in saved["param_groups"] for place in group["params"]]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    with torch.no_grad():
        for place, weight in zip(places, weights, strict=True):
            for kind, value in saved["state"][place].items():
                optimizer.state[weight][kind].copy_(value)
