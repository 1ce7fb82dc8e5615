"""How the model is divided: matrices, experts and what is left of the weights, while the checkpoint is read."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig


class Division:
    """``sizes`` are DistributedConfig's. Processes of one tensor-parallel group share their rows."""

    stages = None

    def __init__(self, args, **sizes: int):
        self.config = DistributedConfig(**sizes, fsdp_mixed_precision=args.bf16)
        args.copies = self.copies = self.config.dp_size
        self.loss_copies = self.config.tp_size
        self.copy = dist.get_rank() // self.config.tp_size

    def load_model(self, auto, source, **keywords):
        """Every process reads its parts alone."""
        return auto.from_pretrained(source, distributed_config=self.config, **keywords)

    def join(self, micro_batches: tuple[dict, ...]) -> tuple[dict, ...]:
        return micro_batches

    def count_evaluated_rows(self, args) -> int:
        return args.eval_batch_size

    def compute_loss(self, model, inputs: dict, count) -> torch.Tensor:
        """The sum of losses over ``count``; without one, their mean."""
        more = {} if count is None else {"num_items_in_batch": count}
        return model(input_ids=inputs["input_ids"], labels=inputs["labels"], use_cache=False, **more).loss

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.copies).backward()  # FSDP averages the gradients of the copies

    def sum_gradients(self, model) -> None:
        """FSDP has done it, and tensor parallelism needs none."""

    def count_parameters(self, model) -> int:
        return sum(weight.numel() for weight in model.parameters())

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
