"""How the model is divided: matrices, experts and what is left of the weights, while the checkpoint is read."""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig
from transformers.distributed import DistributedConfig

from divided_states import (
    PARTIAL_GRADIENTS,
    adapt_equally,
    divide_gradient,
    get_local,
    list_weights,
    share_tied_parts,
    sum_over_processes,
)
from loaded_weights import check_loaded


class Division:
    """``sizes`` are DistributedConfig's. Processes of one tensor-parallel group share their rows.

    ``tokens``: and divide their tokens, where no product needs all of them (token_parts.py); ``vocabulary``: and their
    logits (vocabulary_parts.py).
    """

    stages = None
    router_losses: list[torch.Tensor] | None = None  # of a mixture whose experts a loss balances (router_loss.py)

    def __init__(self, args, tokens=None, vocabulary=None, **sizes: int):
        self.args, self.tokens, self.vocabulary = args, tokens, vocabulary
        self.config = DistributedConfig(**sizes, fsdp_mixed_precision=args.bf16)
        args.copies = self.copies = self.config.dp_size
        self.loss_copies = self.config.tp_size
        self.copy = dist.get_rank() // self.config.tp_size
        # whose dropout it draws, of how many, in how many processes: a tensor-parallel group draws one
        self.seed_place = self.copy, self.copies, dist.get_world_size()
        self.partial: list[torch.nn.Parameter] = []
        self.adapters: list[torch.nn.Parameter] = []

    def load_model(self, auto, source, adapt: Callable | None = None, **keywords):
        """Every process reads its parts alone. ``adapt`` puts adapters into it, which every copy has whole."""
        revision = {"revision": keywords["revision"]} if "revision" in keywords else {}
        plan = AutoConfig.from_pretrained(source, trust_remote_code=False, **revision).base_model_tp_plan or {}
        plan = {f"model.{name}": style for name, style in plan.items()}
        partial = [name for name, style in plan.items() if style == PARTIAL_GRADIENTS]
        # Transformers sums these after every micro-batch, and what was summed before once more: sum_gradients does
        styles = dict.fromkeys(partial, "replicate") | (self.tokens.choose_styles(plan) if self.tokens else {})
        if self.vocabulary is not None:
            self.config.tp_plan = styles | self.vocabulary.styles
        model, loading = auto.from_pretrained(
            source, distributed_config=self.config, output_loading_info=True, ignore_mismatched_sizes=True, **keywords
        )
        check_loaded(model, loading)
        share_tied_parts(model)
        if self.vocabulary is not None:
            self.partial = [weight for pattern in partial for weight in list_weights(model, pattern)]
            if self.tokens:
                self.partial += self.tokens.list_divided(model.model.layers)
                self.tokens.begin_in(model.model.layers[0], find_mesh(model, "tp"))
                self.tokens.end_in(model.model.norm, find_mesh(model, "tp"))
            model.loss_function = self.vocabulary(find_mesh(model, "tp"), model.config.vocab_size)
            for weight in model.parameters():
                if isinstance(weight, DTensor) and weight.device_mesh.mesh_dim_names == ("tp",):  # FSDP divides its own
                    weight.register_post_accumulate_grad_hook(divide_gradient)
        if adapt is None:
            return model
        adapted = adapt_equally(model, adapt, self.args)
        self.adapters = [weight for weight in adapted.parameters() if weight.requires_grad]
        self.partial = [weight for weight in self.adapters if not isinstance(weight, DTensor)]
        return adapted

    def choose_row_multiple(self, seq_len: int) -> int:
        """Any number of tokens goes that its processes can divide."""
        return math.lcm(8, self.config.tp_size) if self.tokens else 8

    def join(self, micro_batches: tuple[dict, ...]) -> tuple[dict, ...]:
        return micro_batches

    def count_evaluated_rows(self, args) -> int:
        return args.eval_batch_size

    def compute_loss(self, model, inputs: dict, count) -> torch.Tensor:
        """The sum of losses over ``count``; without one, their mean."""
        more = {} if count is None else {"num_items_in_batch": count}
        balances = count is not None and self.router_losses is not None
        more |= {"output_router_logits": True} if balances else {}
        outputs = model(input_ids=inputs["input_ids"], labels=inputs["labels"], use_cache=False, **more)
        if balances:
            self.router_losses.append(outputs.aux_loss.detach())
        return outputs.loss

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.copies).backward()  # FSDP averages the gradients of the copies

    def sum_gradients(self, model) -> None:
        """FSDP has done it, but of adapters, and tensor parallelism needs it for few."""
        if self.partial:
            sum_over_processes([get_local(weight.grad) for weight in self.partial], find_mesh(model, "tp").get_group())
        if self.adapters and self.copies > 1:
            gradients = [get_local(weight.grad) for weight in self.adapters]
            sum_over_processes(gradients, find_mesh(model, "fsdp").get_group())
            torch._foreach_div_(gradients, self.copies)

    def list_counted(self, model) -> list[torch.nn.Parameter]:
        """Every process has all of them, or its part of each."""
        return list(model.parameters())

    def count_parameters(self, model) -> int:
        return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)

    def describe(self, model) -> list[str]:
        """The axes of the meshes over which weights really are divided, and their sizes."""
        axes = {}
        for weight in model.parameters():
            if isinstance(weight, DTensor):
                mesh = weight.device_mesh
                for name, size, placement in zip(mesh.mesh_dim_names, mesh.shape, weight.placements, strict=True):
                    if placement.is_shard() and size > 1:
                        axes[name] = size
        return [f"{name} {size}" for name, size in sorted(axes.items())]


def find_mesh(model, axis: str) -> DeviceMesh:
    """That axis of the mesh over which weights are divided: "tp" is the tensor-parallel group."""
    meshes = (weight.device_mesh for weight in model.parameters() if isinstance(weight, DTensor))
    return next(mesh for mesh in meshes if axis in mesh.mesh_dim_names)[axis]
