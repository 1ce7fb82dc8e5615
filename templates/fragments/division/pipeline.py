"""How layers are divided: a run of them on each stage of a pipeline, which micro-batches pass in turn (1F1B)."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from divided_states import (
    PARTIAL_GRADIENTS,
    adapt_equally,
    divide_gradient,
    get_local,
    list_weights,
    refuse_router_loss,
    sum_over_processes,
)
from loaded_weights import check_loaded

ADDED_ROWS = "trainable_tokens_delta"
"""What PEFT calls rows of an embedding that it trains beside adapters (trainable_token_indices)."""


class Stage(nn.Module):
    """The layers of one stage; the first has the embedding, the last the norm and the output layer."""

    parts = 1  # of each row, where the processes of a stage divide its tokens

    def __init__(self, model, args, is_first: bool, is_last: bool):
        super().__init__()
        self.base, self.head = model.model, model.lm_head
        self.device_type, self.bf16, self.is_first, self.is_last = args.device.type, args.bf16, is_first, is_last
        self.shares_casts = not args.activation_checkpointing

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Token ids on the first stage, hidden states on the others; logits from the last."""
        # to the end of the step: else each micro-batch keeps 16-bit copies of all weights for its backward pass
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16, cache_enabled=self.shares_casts):
            hidden = self.base.embed_tokens(states) if self.is_first else states
            count = hidden.shape[1] * (1 if self.is_first else self.parts)
            positions = torch.arange(count, device=hidden.device)[None]
            rotations = self.base.rotary_emb(hidden, positions)
            for layer in self.base.layers.children():
                hidden = layer(hidden, attention_mask=None, position_embeddings=rotations, position_ids=positions)
            return self.head(self.base.norm(hidden)) if self.is_last else hidden


class LeanStage(PipelineStage):
    """PyTorch's own has memory for all micro-batches of a step at once, and in an evaluation keeps all their logits."""

    received_gradients: tuple = ()

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        """A place is taken until the micro-batch has come back: under 1F1B before one more comes."""
        under_way = self.num_stages - self.stage_index if num_microbatches >= self.num_stages else num_microbatches
        super()._setup_forward_recv_info(under_way, has_backward)
        for number in range(under_way, num_microbatches):
            self.args_recv_info[number] = self.args_recv_info[number % under_way]

    def _create_grad_recv_info(self, act_send_info: dict) -> tuple:
        """One place: gradients are received when those before them have been used."""
        self.received_gradients = self.received_gradients or super()._create_grad_recv_info(act_send_info)
        return self.received_gradients

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        sent = super().get_fwd_send_ops(fwd_chunk_id)
        if not self.has_backward:  # nothing comes back for it
            del self.fwd_cache[fwd_chunk_id]
        return sent


class Division:
    """A stage for each number of ``layers``; ``copies`` of the pipeline have rows of their own.

    FSDP2 divides ``sharded`` stages over the copies. ``ways`` processes share each stage by tensor parallelism.
    They divide the logits by ``vocabulary`` (vocabulary_parts.py) and, given ``tokens``, the tokens of each row, which
    they send on so (token_parts.py).
    """

    def __init__(
        self, args, layers: list[int], copies: int, sharded: bool, ways: int = 1, tokens=None, vocabulary=None
    ):
        self.tokens, self.vocabulary, self.logits = tokens, vocabulary, None
        self.args, self.layers, self.sharded, self.copies, self.count = args, layers, sharded, copies, len(layers)
        names = ("stages", "copies", "ways")  # neighbours share a stage, and stages lie on other nodes first
        self.mesh = init_device_mesh(args.device.type, (self.count, copies, ways), mesh_dim_names=names)
        self.number, self.copy, _ = self.mesh.get_coordinate()
        self.stages, args.copies, self.loss_copies = self.mesh.get_group("stages"), copies, ways
        # whose dropout it draws, of how many, in how many processes: the ways of a stage draw one
        self.seed_place = self.number * copies + self.copy, self.count * copies, dist.get_world_size()
        self.is_first, self.is_last = self.number == 0, self.number == self.count - 1
        ends = self.mesh.mesh[[0, -1]].flatten(1).T.tolist()  # first and last stage, of each copy and way
        self.ends, _ = dist.new_subgroups_by_enumeration(ends)
        self.shared: list[nn.Parameter] = []  # of the embedding that is the output layer too
        self.partial: list[nn.Parameter] = []
        self.asked: torch.Tensor | None = None

    def load_model(
        self, auto, source, dtype: torch.dtype, adapt: Callable | None = None, beneath=nullcontext, **keywords
    ):
        """Every process opens the whole model, and keeps its stage. Layers keep their numbers, and names.

        ``adapt`` puts adapters into it; ``beneath`` them its matrices are divided (adapter_parts.py). Without them only
        what is kept becomes ``dtype``: of the rest the weights stay in their file, which is mapped into memory.
        """
        model, loading = auto.from_pretrained(
            source, dtype=dtype if adapt else "auto", output_loading_info=True, ignore_mismatched_sizes=True, **keywords
        )
        check_loaded(model, loading)
        refuse_router_loss(model.config)
        whole = adapt_equally(model, adapt, self.args)
        tied = model.config.tie_word_embeddings
        first = sum(self.layers[: self.number])
        for number in set(range(sum(self.layers))) - set(range(first, first + self.layers[self.number])):
            del model.model.layers._modules[str(number)]
        if not self.is_first and not (self.is_last and tied):
            model.model.embed_tokens = None
        if not self.is_last:
            model.model.norm = model.lm_head = None
        if self.vocabulary is not None:
            with beneath(model):  # a weight at a time comes to the device whole
                self.logits = self.divide_matrices(model, tied, self.vocabulary)
        model.to(self.args.device, dtype=None if adapt else dtype)
        for weight in model.parameters():
            if isinstance(weight, DTensor) and weight.requires_grad:
                weight.register_post_accumulate_grad_hook(divide_gradient)
        self.part = Stage(model, self.args, self.is_first, self.is_last)
        if self.tokens:
            self.divide_tokens(self.tokens)
        if self.sharded:
            self.shard()
        if self.loss_copies > 1:
            partial = self.list_partial(model) if adapt is None else model.parameters()
            self.partial = [weight for weight in partial if weight.requires_grad and not is_divided(weight, "ways")]
        if tied and (self.is_first or self.is_last):
            embedding = dict(model.get_input_embeddings().named_parameters())
            self.shared = [weight for name, weight in embedding.items() if ADDED_ROWS in name or adapt is None]
        stage = LeanStage(self.part, self.number, self.count, self.args.device, group=self.stages)
        chunks = self.args.gradient_accumulation_steps
        kind = Schedule1F1B if chunks >= self.count else ScheduleGPipe  # 1F1B fills every stage
        self.schedule = kind(stage, chunks, loss_fn=self.compute_micro_batch_loss, scale_grads=False)
        return whole

    def divide_matrices(self, model, tied: bool, vocabulary):
        """By the model's own plan. What it leaves whole every process of the stage has. The loss of divided logits."""
        plan = {pattern: style for pattern, style in model.tp_plan.items() if style != PARTIAL_GRADIENTS}
        plan |= (self.tokens.choose_styles(plan) if self.tokens else {}) | vocabulary.styles
        styles = model._expand_parallel_plan(plan)
        if tied and self.is_last:
            del styles["lm_head.weight"]  # it is the embedding's, which is divided so
        apply_tensor_parallelism(model, self.mesh["ways"], styles)
        if tied and self.is_last:
            model.lm_head.weight = model.model.embed_tokens.weight
        return vocabulary(self.mesh["ways"], model.config.vocab_size)

    def divide_tokens(self, tokens) -> None:
        layers = list(self.part.base.layers.children())
        self.part.parts, mesh = self.loss_copies, self.mesh["ways"]
        if self.is_first:
            tokens.begin_in(layers[0], mesh)
        if self.is_last:
            tokens.end_in(self.part.base.norm, mesh)

    def shard(self) -> None:
        """Weights stay whole from the forward to the backward pass: others would be gathered for every micro-batch."""
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        settings = {"mesh": self.mesh["copies"], "reshard_after_forward": False}
        settings |= {"mp_policy": policy} if self.args.bf16 else {}
        for layer in self.part.base.layers.children():
            fully_shard(layer, **settings)
        fully_shard(self.part, **settings)

    def list_partial(self, model) -> list[nn.Parameter]:
        """Weights that every way has, and uses for its own heads or tokens. FSDP2 has put others in their place."""
        patterns = [pattern for pattern, style in model.tp_plan.items() if style == PARTIAL_GRADIENTS]
        layers = list(self.part.base.layers.children())
        weights = [weight for pattern in patterns for weight in list_weights(model, pattern)]
        return weights + (self.tokens.list_divided(layers) if self.tokens else [])

    def choose_row_multiple(self, seq_len: int) -> int:
        """Stages have agreed on shapes: all rows are as long."""
        return seq_len

    def join(self, micro_batches: tuple[dict, ...]) -> tuple[dict, ...]:
        """All micro-batches of a step are one call: the schedule cuts them apart again."""
        return ({name: torch.cat([inputs[name] for inputs in micro_batches]) for name in micro_batches[0]},)

    def count_evaluated_rows(self, args) -> int:
        """As many as in training: stages have agreed on shapes."""
        return args.train_batch_size * args.gradient_accumulation_steps

    def compute_loss(self, model, inputs: dict, count) -> torch.Tensor:
        """With ``count`` forward and backward passes of all micro-batches; the loss on the last stage, 0 on others.

        Without it forward passes, and the mean loss on every stage.
        """
        targets = F.pad(inputs["labels"], (0, 1), value=-100)[:, 1:].contiguous()
        self.asked = count if count is not None else targets.ne(-100).sum().clamp(min=1)
        losses: list[torch.Tensor] = []
        run = self.schedule.step if count is not None else self.schedule.eval
        if self.is_first:
            run(inputs["input_ids"])
        elif self.is_last:
            run(target=targets, losses=losses, return_outputs=False)
        else:
            run()
        loss = torch.stack(losses).sum().detach() if self.is_last else torch.zeros((), device=self.args.device)
        if count is None:
            dist.broadcast(loss, group=self.stages, group_src=self.count - 1)
        return loss

    def compute_micro_batch_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.logits is not None:
            return self.logits.sum_losses(logits, targets) / self.asked
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)
        return loss / self.asked

    def backward(self, loss: torch.Tensor) -> None:
        """The schedule has done it."""

    def sum_gradients(self, model) -> None:
        sum_over_processes([get_local(weight.grad) for weight in self.partial], self.mesh.get_group("ways"))
        by_fsdp: list[torch.Tensor] = []
        whole: list[torch.Tensor] = []
        for weight in model.parameters():
            if weight.grad is not None:
                (by_fsdp if is_divided(weight, "copies") else whole).append(get_local(weight.grad))
        if by_fsdp:
            torch._foreach_mul_(by_fsdp, self.copies)  # FSDP has averaged them
        if whole and self.copies > 1:
            sum_over_processes(whole, self.mesh.get_group("copies"))
        for weight in self.shared:
            dist.all_reduce(get_local(weight.grad), group=self.ends)

    def list_counted(self, model) -> list[nn.Parameter]:
        """Weights of which no other stage has a copy that counts."""
        own = [] if self.is_first else self.shared
        return [weight for weight in model.parameters() if not any(weight is each for each in own)]

    def count_parameters(self, model) -> int:
        """Of all stages."""
        trained = sum(weight.numel() for weight in self.list_counted(model) if weight.requires_grad)
        count = torch.tensor(trained, device=self.args.device)
        dist.all_reduce(count, group=self.stages)
        return int(count)

    def describe(self, model) -> list[str]:
        """The stages that hold every layer once between them, and over how many processes each is divided."""
        held: list[list[str]] = [[] for _ in range(self.count)]
        dist.all_gather_object(held, list(self.part.base.layers._modules), group=self.stages)
        is_whole = [name for stage in held for name in stage] == [str(n) for n in range(model.config.num_hidden_layers)]
        stages = sum(map(bool, held)) if is_whole else 1
        divided_over = {name: any(is_divided(w, name) for w in model.parameters()) for name in ("copies", "ways")}
        shards, ways = (self.mesh[name].size() if divided else 1 for name, divided in divided_over.items())
        sizes = {"fsdp": shards, "stages": stages, "tp": ways}
        return [f"{name} {size}" for name, size in sizes.items() if size > 1]


def is_divided(weight: torch.Tensor, name: str) -> bool:
    """Over that axis of the mesh."""
    return isinstance(weight, DTensor) and name in weight.device_mesh.mesh_dim_names
