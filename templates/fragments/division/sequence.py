"""How sequences are divided: each process has its part of every row, and attention exchanges what it needs."""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.distributed import DistributedConfig

from divided_states import adapt_equally, refuse_router_loss, share_tied_parts, sum_over_processes
from loaded_weights import check_loaded
from sequence_attention import NAME, SequenceAttention


class Division:
    """``parts`` processes share each row; ``copies`` of them have rows of their own.

    ``sharded``: FSDP2 divides the weights over all processes; otherwise each has all of them.
    """

    stages, loss_copies = None, 1

    def __init__(self, args, parts: int, copies: int, sharded: bool):
        self.args, self.device, self.sharded, self.parts = args, args.device, sharded, parts
        mesh = init_device_mesh(args.device.type, (copies, parts), mesh_dim_names=("copies", "parts"))
        args.copies, self.copy, self.part = copies, *mesh.get_coordinate()
        self.group = mesh.get_group("parts")
        world = dist.get_world_size()
        self.averaged_over = world if sharded else 1
        # whose dropout it draws, of how many, in how many processes: its tokens are its own
        self.seed_place = self.copy * parts + self.part, world, world
        self.config = DistributedConfig(fsdp_size=world, fsdp_mixed_precision=args.bf16) if sharded else None
        self.attention = SequenceAttention(self.group, self.part, parts)

    def load_model(self, auto, source, attn_implementation: str, adapt: Callable | None = None, **keywords):
        """With the attention of this project in the place of ``attn_implementation``, whose kernels it calls.

        ``adapt`` puts adapters into it, which every process has whole.
        """
        AttentionInterface.register(NAME, self.attention)
        AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)  # causal, whatever the parts
        more = {"distributed_config": self.config} if self.sharded else {}
        model, loading = auto.from_pretrained(
            source, attn_implementation=NAME, **more, output_loading_info=True, ignore_mismatched_sizes=True, **keywords
        )
        check_loaded(model, loading)
        share_tied_parts(model)
        refuse_router_loss(model.config)
        self.longest = find_longest(model.config)
        model = adapt_equally(model, adapt, self.args)
        return model if self.sharded else model.to(self.device)

    def choose_row_multiple(self, seq_len: int) -> int:
        """Every part has as many tokens, in two pieces."""
        return 2 * self.parts

    def join(self, micro_batches: tuple[dict, ...]) -> tuple[dict, ...]:
        return micro_batches

    def count_evaluated_rows(self, args) -> int:
        return args.eval_batch_size

    def compute_loss(self, model, inputs: dict, count) -> torch.Tensor:
        """Of this part, the sum of losses over ``count``; without one, the mean over all parts."""
        targets = F.pad(inputs["labels"], (0, 1), value=-100)[
            :, 1:
        ]  # each token predicts the next, which another may have
        asked = count if count is not None else targets.ne(-100).sum().clamp(min=1)
        if self.longest and targets.shape[1] > self.longest:
            message = (
                f"this model rotates rows of more than {self.longest} tokens by where they end, which a part does not"
            )
            sys.exit(f"{message} see: take another parallelism, or seq_len." if dist.get_rank() == 0 else 1)
        positions = torch.arange(targets.shape[1], device=targets.device)[None]
        ids, targets, positions = map(self.attention.take_part, (inputs["input_ids"], targets, positions))
        loss = model(
            input_ids=ids,
            position_ids=positions,
            labels=targets,
            shift_labels=targets,
            num_items_in_batch=asked,
            use_cache=False,
        ).loss
        if count is None:
            dist.all_reduce(loss, group=self.group)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.averaged_over).backward()  # FSDP averages

    def sum_gradients(self, model) -> None:
        whole = [weight.grad for weight in model.parameters() if not isinstance(weight, DTensor)]
        whole = [gradient for gradient in whole if gradient is not None]
        if whole:
            sum_over_processes(whole)
            torch._foreach_div_(whole, self.averaged_over)

    def list_counted(self, model) -> list[torch.nn.Parameter]:
        """Every process has all of them, or its part of each."""
        return list(model.parameters())

    def count_parameters(self, model) -> int:
        return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)

    def describe(self, model) -> list[str]:
        """Whether attention exchanges what it needs, in a group of how many, and over how many weights are divided."""
        parts = dist.get_world_size(self.group) if model.config._attn_implementation == NAME else 1
        weights = list(model.parameters())
        shards = {w.device_mesh.size() if isinstance(w, DTensor) else 1 for w in weights}
        return [f"fsdp {n}" for n in sorted(shards) if n > 1] + ([f"parts {parts}"] if parts > 1 else [])


def find_longest(config) -> int | None:
    """Tokens of the longest row whose rotary embeddings do not depend on its length; ``None``: none do."""
    parameters = config.rope_parameters or {}
    if parameters.get("rope_type") == "longrope":
        return parameters["original_max_position_embeddings"]
    return config.max_position_embeddings if parameters.get("rope_type") == "dynamic" else None
