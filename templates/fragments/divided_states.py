"""Weights and optimizer states that are divided over processes: updated, saved in parts, and put together at the end.

Parts are saved by torch.distributed.checkpoint under the names of the whole model, so that another number of processes
can go on with them.
"""

import copy
import shutil
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._pytree import tree_map
from transformers import Trainer
from transformers.trainer_pt_utils import get_parameter_names

from parallel import gloo_group

SENT_ELEMENTS = 25_000_000
"""That are summed at once."""
PARTS = "parts"
"""A folder in a checkpoint."""
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
"""States by the weight's name: how weights are grouped may be another at resume."""
UNDECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Names of weights that do not decay, as Trainer has them."""


def create_optimizer(model: nn.Module, args) -> torch.optim.Optimizer:
    """Trainer's, by --optim. Weights of one mesh are updated together: one kernel takes no others."""
    decayed = set(get_parameter_names(model, [nn.LayerNorm], list(UNDECAYED)))
    groups: dict[tuple, list[nn.Parameter]] = defaultdict(list)
    for name, weight in model.named_parameters():
        groups[name in decayed, find_mesh(weight)].append(weight)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
    decays = [
        {"params": weights, "weight_decay": args.weight_decay if decay else 0.0}
        for (decay, _), weights in groups.items()
    ]
    return kind(decays, **options)


def find_mesh(tensor: torch.Tensor):
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def clip_gradients(model: nn.Module, most: float, stages: dist.ProcessGroup | None) -> float:
    """The norm of all gradients, those of other ``stages`` of a pipeline included; above ``most`` they shrink to it."""
    meshes: dict = defaultdict(list)
    for weight in model.parameters():
        if weight.grad is not None:
            meshes[find_mesh(weight.grad)].append(weight.grad)
    norms = [nn.utils.get_total_norm(gradients) for gradients in meshes.values()]
    square = sum((norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2 for norm in norms)
    if stages is not None:
        dist.all_reduce(square, group=stages)
    norm = square.sqrt().item()
    if most and norm > most:
        for gradients in meshes.values():
            torch._foreach_mul_([get_local(gradient) for gradient in gradients], most / (norm + 1e-6))
    return norm


def sum_over_processes(gradients: list[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Of weights that every process of the group has whole. Many are sent as one, as DistributedDataParallel does."""
    sent: list[torch.Tensor] = []
    for gradient in gradients:
        sent.append(gradient)
        if sum(tensor.numel() for tensor in sent) > SENT_ELEMENTS or gradient is gradients[-1]:
            flat = _flatten_dense_tensors(sent)
            dist.all_reduce(flat, group=group)
            torch._foreach_copy_(sent, list(_unflatten_dense_tensors(flat, sent)))
            sent = []


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def save_states(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Every process its part. Tensors that several have are written once."""
    dcp.save(make_contiguous(collect_states(model, optimizer)), checkpoint_id=folder / PARTS)


def load_states(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Every process its part, which may be another than was saved by it."""
    states = collect_states(model, optimizer)
    saved = make_contiguous(states)
    dcp.load(saved, checkpoint_id=folder / PARTS)
    divided = tree_map(redistribute_as, saved, states)
    set_model_state_dict(model, divided["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, divided["optimizer"], options=BY_NAME)


def collect_states(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict:
    states = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        states["optimizer"] = get_optimizer_state_dict(model, optimizer, options=BY_NAME)
    return states


def make_contiguous(states: dict) -> dict:
    """torch.distributed.checkpoint takes each part for one block; of tensor parallelism with FSDP it is several."""

    def join(value):
        if not isinstance(value, DTensor):
            return value
        plain = tuple(Shard(p.dim) if isinstance(p, _StridedShard) else p for p in value.placements)
        return value if plain == value.placements else value.redistribute(placements=plain)

    return tree_map(join, states)


def redistribute_as(value, reference):
    if not isinstance(value, DTensor) or value.placements == reference.placements:
        return value
    return value.redistribute(placements=reference.placements)


def save_plain_model(folder: Path, model, tokenizer) -> None:
    """One plain model that Transformers loads: the parts are written, and the first process puts them together."""
    parts = folder.with_name(f"{folder.name}.{PARTS}")
    if dist.get_rank() == 0:
        shutil.rmtree(parts, ignore_errors=True)
    dist.barrier(group=gloo_group())
    save_states(parts, model)
    if dist.get_rank() == 0:
        config = copy.deepcopy(model.config)
        vars(config).pop("distributed_config", None)  # of a model that is whole again
        with torch.device("meta"):
            whole = type(model)(config)
        whole = whole.to(model.dtype).to_empty(device="cpu")
        whole.tie_weights()
        states = {"model": whole.state_dict()}
        dcp.load(states, checkpoint_id=parts / PARTS, no_dist=True)
        whole.generation_config = model.generation_config
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shutil.rmtree(parts)
    dist.barrier(group=gloo_group())
