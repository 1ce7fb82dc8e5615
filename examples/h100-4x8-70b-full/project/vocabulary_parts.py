"""Cross-entropy in a tensor-parallel group whose processes have the logits of a part of the vocabulary each.

No process has all logits of a token: three numbers of it are exchanged in their place (Megatron, arXiv 1909.08053).
"""

import sys
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F


class VocabularyParts:
    """Of an output layer that is divided as its weight is."""

    styles: ClassVar = {"lm_head": "colwise"}  # the plan of the model gathers all logits

    def __init__(self, mesh: DeviceMesh, vocab_size: int):
        each = -(-vocab_size // mesh.size())  # the last part may be smaller
        self.group, self.first = mesh.get_group(), mesh.get_local_rank() * each
        self.count = min(each, vocab_size - self.first)

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, num_items_in_batch=None, **kwargs):
        """As Transformers' ForCausalLMLoss, whose place it takes."""
        targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
        count = targets.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        return self.sum_losses(logits, targets) / count

    def sum_losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of targets that are not -100."""
        if logits.shape[-1] != self.count:
            sys.exit(f"the output layer is not divided: logits of {logits.shape[-1]} words, and not of {self.count}")
        return DividedCrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), self.first, self.group)


class DividedCrossEntropy(torch.autograd.Function):
    """The sum of the losses of tokens from logits of which each process has those of the words from ``first`` on."""

    @staticmethod
    def forward(ctx, logits: torch.Tensor, targets: torch.Tensor, first: int, group: dist.ProcessGroup):
        largest = logits.amax(dim=-1).float()
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest[:, None]  # in float32, whatever the logits are
        learned, own = targets.ge(0), targets - first
        here = learned & own.ge(0) & own.lt(logits.shape[-1])
        own = own.where(here, 0)[:, None]
        chosen = shifted.gather(-1, own)[:, 0].where(here, 0)
        probabilities = shifted.exp_()
        sums = torch.stack([chosen, probabilities.sum(dim=-1)])
        dist.all_reduce(sums, group=group)
        chosen, total = sums
        probabilities /= total[:, None]
        ctx.save_for_backward(probabilities, own, here, learned)
        ctx.dtype = logits.dtype
        return (total.log() - chosen).where(learned, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor):
        """Probabilities, less one where the target is. Written over them: they are the largest tensor of a step."""
        probabilities, own, here, learned = ctx.saved_tensors
        probabilities.scatter_add_(-1, own, -here.to(probabilities.dtype)[:, None])
        probabilities *= (gradient * learned)[:, None]
        return probabilities.to(ctx.dtype), None, None, None
