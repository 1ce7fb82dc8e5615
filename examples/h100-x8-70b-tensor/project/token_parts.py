"""Sequence parallelism in a tensor-parallel group: between its products each process has a part of every row's tokens.

Norms and residuals are computed, and kept for the backward pass, by part (Megatron-LM, arXiv 2205.05198). Attention and
feed-forward gather all tokens once, and leave each process its part of their sum: as much is sent as for whole sums.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import RowwiseParallel, TensorParallelLayer

PART, WHOLE = [Shard(1)], [Replicate()]
GATHERED, SCATTERED = "gathered_tokens", "scattered_sum"
"""Names of styles in a model's plan, beside those of Transformers."""


class GatheredTokens(TensorParallelLayer):
    """Of a block's input. Its products take a DTensor, so that their gradients are summed once, and not one by one."""

    def transform_inputs_pre_forward(self, module, args, kwargs, mesh):
        states, others = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
        kind = states.device.type
        if torch.is_autocast_enabled(kind):  # it would be sent in float32
            states = states.to(torch.get_autocast_dtype(kind))
        return (move(states, mesh, PART, WHOLE), *others), kwargs


ALL_PARALLEL_STYLES.register(GATHERED, GatheredTokens())
ALL_PARALLEL_STYLES.register(SCATTERED, RowwiseParallel(output_layouts=Shard(1)))


def move(states: torch.Tensor, mesh: DeviceMesh, before: list, after: list) -> DTensor:
    return DTensor.from_local(states, mesh, before, run_check=False).redistribute(placements=after)


def refuse(message: str) -> None:
    """In every process, and said by the first."""
    sys.exit(message if dist.get_rank() == 0 else 1)


class TokenParts:
    """Of rows whose tokens the processes of a group divide evenly."""

    blocks: frozenset[str] = frozenset()  # what each layer calls its attention and its feed-forward

    def choose_styles(self, plan: dict[str, str]) -> dict[str, str]:
        """In the place of those of the model's ``plan``, or beside them; by names of modules."""
        sums = [name for name, style in plan.items() if style == "rowwise"]
        inside = [name.rpartition(".")[0] for name in sums]
        self.blocks = frozenset(name.rpartition(".")[2] for name in inside)
        return dict.fromkeys(sums, SCATTERED) | dict.fromkeys(inside, GATHERED)

    def list_divided(self, layers: list[nn.Module]) -> list[nn.Parameter]:
        """Weights that a process uses for its own tokens: their gradients are to be summed."""
        norms = [child for layer in layers for name, child in layer.named_children() if name not in self.blocks]
        weights = [weight for norm in norms for weight in norm.parameters()]
        if any(weight.dim() > 1 for weight in weights):  # of an attention, say, that would see a part of the tokens
            refuse("Transformers' plan leaves matrices of this model's layers whole: plan another parallelism")
        return weights

    def begin_in(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        """It gets whole rows, and goes on with parts."""

        def divide(_, args: tuple) -> tuple:
            states, ways = args[0], mesh.size()
            if states.shape[1] % ways:
                refuse(f"{ways} processes cannot divide rows of {states.shape[1]} tokens: set another seq_len")
            return move(states, mesh, WHOLE, PART).to_local(), *args[1:]

        layer.register_forward_pre_hook(divide)

    def end_in(self, norm: nn.Module, mesh: DeviceMesh) -> None:
        """It gets parts, and goes on with whole rows."""
        norm.register_forward_pre_hook(lambda _, args: (move(args[0], mesh, PART, WHOLE).to_local(), *args[1:]))
