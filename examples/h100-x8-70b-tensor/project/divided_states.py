"""Weights and optimizer states that are divided over processes: updated, saved in parts, and put together at the end.

Parts are saved by torch.distributed.checkpoint under the names of the whole model, so that another number of processes
can go on with them.
"""

import copy
import errno
import fnmatch
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from transformers import Trainer, set_seed
from transformers.trainer_pt_utils import get_parameter_names

from parallel import gloo_group

SENT_ELEMENTS = 25_000_000
"""That are summed at once."""
PARTS = "parts"
"""A folder in a checkpoint."""
FIRST = "first_weights"
"""A folder in that of the run, while it starts."""
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True, ignore_frozen_params=True)
"""States by the weight's name: how weights are grouped may be another at resume."""
PARTIAL_GRADIENTS = "replicated_with_grad_allreduce"
"""In Transformers' plans for tensor parallelism: weights that every process has, and uses for its heads only."""
TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""What an adapter leaves as it is is not saved again."""
UNDECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Names of weights that do not decay, as Trainer has them."""


def create_optimizer(model: nn.Module, args) -> torch.optim.Optimizer:
    """Trainer's, by --optim. Weights of one mesh are updated together: one kernel takes no others."""
    if args.optim == "adafactor" and any(isinstance(weight, DTensor) for weight in model.parameters()):
        # its rows and columns of a divided weight are no DTensors (transformers.optimization.Adafactor.step)
        sys.exit("--optim adafactor takes whole weights, and this plan divides them: --optim adamw_torch")
    decayed = set(get_parameter_names(model, [nn.LayerNorm], list(UNDECAYED)))
    groups: dict[tuple, list[nn.Parameter]] = defaultdict(list)
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        groups[name in decayed, find_mesh(weight)].append(weight)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
    decays = [
        {"params": weights, "weight_decay": args.weight_decay if decay else 0.0}
        for (decay, _), weights in groups.items()
    ]
    return kind(decays, **options)


class InFiles(TorchFunctionMode):
    """Weights that are made in it are mapped from files of ``folder``: a whole model may be larger than the memory.

    The files have no names: they go with the process, however it ends.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.file = folder / f"{FIRST}.mapped"

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function not in (torch.empty, torch.empty_like):
            return function(*args, **kwargs)
        like = function(*args, **kwargs | {"device": "meta"})
        if not like.numel():
            return function(*args, **kwargs)
        needed = like.numel() * like.element_size()
        try:
            with self.file.open("wb") as file:  # a disk without room would end the process by a signal, later
                if shutil.disk_usage(self.file.parent).free < needed:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file.parent))
                os.posix_fallocate(file.fileno(), 0, needed)
            made = torch.from_file(str(self.file), shared=True, size=like.numel(), dtype=like.dtype)
        finally:
            self.file.unlink()
        return made.view(like.shape)


def write_first_weights(auto, config, folder: Path) -> Path:
    """A model that begins with random weights, from which every process reads its parts. On the first process."""
    path = folder / FIRST
    with InFiles(folder):
        model = auto.from_config(config, trust_remote_code=False, dtype=torch.float32)
    model.save_pretrained(path)
    return path


def remove_first_weights(path: Path) -> None:
    """Once all have read them."""
    dist.barrier(group=gloo_group())
    if dist.get_rank() == 0:
        shutil.rmtree(path)


def adapt_equally(model: nn.Module, adapt: Callable | None, args) -> nn.Module:
    """With adapters that begin with the same random numbers in every process."""
    if adapt is None:
        return model
    set_seed(args.seed)
    return adapt(model)


def share_tied_parts(model: nn.Module) -> None:
    """Of a weight that two layers share FSDP2 keeps one part in each process. Before the first forward pass.

    Where rows do not divide evenly it would have a padded copy for each layer, and one that is never updated
    (torch 2.13, https://github.com/pytorch/pytorch/issues/176076).
    """
    kept: dict[nn.Parameter, torch.Tensor] = {}
    for module in model.modules():
        groups = module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else ()
        for part in (part for group in groups for part in group.fsdp_params):
            weight = getattr(part._module_info.module, part._module_info.param_name)
            if weight in kept:
                part._sharded_param_data = kept[weight]
            part.reset_sharded_param()
            kept[weight] = part._sharded_param_data


def refuse_router_loss(config) -> None:
    """It is of all tokens and layers: those of a part of them do not add up to it. Ends the process."""
    if vars(config).get("output_router_logits"):
        message = "output_router_logits in the model's config.json: this division computes no loss of its routers."
        sys.exit(f"{message} Set it to false, or plan another parallelism." if dist.get_rank() == 0 else 1)


def find_mesh(tensor: torch.Tensor):
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def clip_gradients(model: nn.Module, most: float, division) -> float:
    """The norm of all weights' gradients, those of other stages of a pipeline included, each weight counted once.

    Where it is above ``most`` all gradients shrink by as much as brings it there.
    """
    meshes: dict = defaultdict(list)
    for weight in division.list_counted(model):
        if weight.grad is not None:
            meshes[find_mesh(weight.grad)].append(weight.grad)
    norms = [nn.utils.get_total_norm(gradients) for gradients in meshes.values()]
    square = sum((norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2 for norm in norms)
    if division.stages is not None:
        dist.all_reduce(square, group=division.stages)
    norm = square.sqrt().item()
    if most and norm > most:
        gradients = [get_local(weight.grad) for weight in model.parameters() if weight.grad is not None]
        torch._foreach_mul_(gradients, most / (norm + 1e-6))
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


def list_weights(model: nn.Module, pattern: str) -> list[nn.Parameter]:
    """Of the modules of that name."""
    modules = dict(model.named_modules())
    return [weight for name in fnmatch.filter(modules, pattern) for weight in modules[name].parameters()]


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divide_gradient(weight: nn.Parameter) -> None:
    """As its weight: an embedding's would be whole on every process."""
    if weight.grad is not None and weight.grad.placements != weight.placements:
        weight.grad = weight.grad.redistribute(placements=weight.placements)


@contextmanager
def name_failure() -> Generator[None, None, None]:
    """All are told of a process that cannot write or read, by an error that is no Exception: nothing would catch it."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise RuntimeError(f"rank {rank}: {cause}") from cause


def save_states(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Every process its part. Tensors that several have are written once."""
    with name_failure():
        dcp.save(make_contiguous(collect_states(model, optimizer)), checkpoint_id=folder / PARTS)


def load_states(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Every process its part, which may be another than was saved by it."""
    states = collect_states(model, optimizer)
    saved = make_contiguous(states)
    with name_failure():
        dcp.load(saved, checkpoint_id=folder / PARTS)
    divided = tree_map(redistribute_as, saved, states)
    set_model_state_dict(model, divided["model"], options=TRAINED)
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, divided["optimizer"], options=BY_NAME)


def collect_states(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict:
    states = {"model": get_model_state_dict(model, options=TRAINED)}
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


def save_adapter(folder: Path, model, tokenizer) -> None:
    """As PEFT saves it: the first process gathers the adapters of all layers, each from one of those that have it."""
    trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    weights = {name: (w.full_tensor() if isinstance(w, DTensor) else w).cpu() for name, w in trained.items()}
    held: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(held, list(weights), group=gloo_group())
    before = set().union(*held[: dist.get_rank()])
    own = {name: weight for name, weight in weights.items() if name not in before}
    gathered: list[dict] = [{}] * dist.get_world_size()
    dist.gather_object(own, gathered if dist.get_rank() == 0 else None, group=gloo_group())
    if dist.get_rank() == 0:
        # PEFT's own save leaves out the layers that this process has not, and reads weights that FSDP has freed
        config = copy.deepcopy(model.peft_config["default"])
        config.inference_mode = True
        config.save_pretrained(folder)
        every = {name_as_saved(name): weight for part in gathered for name, weight in part.items()}
        save_file(every, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(folder)
    dist.barrier(group=gloo_group())


def name_as_saved(name: str) -> str:
    """As PEFT has it in its files: DoRA's magnitudes are modules in the model, and tensors there. Rows of embeddings
    (trainable_token_indices) are tensors in both; layers that are trained whole (modules_to_save) keep their names."""
    name = name.replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector")
    return name.replace(".modules_to_save.default.", ".").replace(".default.", ".").removesuffix(".default")


def save_plain_model(folder: Path, model, tokenizer) -> None:
    """One plain model that Transformers loads: the parts are written, and the first process puts them together."""
    if hasattr(model, "peft_config"):
        return save_adapter(folder, model, tokenizer)
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
        with InFiles(parts):
            whole = whole.to(model.dtype).to_empty(device="cpu")
        whole.tie_weights()
        states = {"model": whole.state_dict()}
        with name_failure():
            dcp.load(states, checkpoint_id=parts / PARTS, no_dist=True)
        whole.generation_config = model.generation_config
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shutil.rmtree(parts)
    dist.barrier(group=gloo_group())
