"""How layers are divided: a run of them on each stage of a pipeline, which micro-batches pass in turn (1F1B)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

from divided_states import sum_over_processes


class Stage(nn.Module):
    """The layers of one stage; the first has the embedding, the last the norm and the output layer."""

    def __init__(self, model, args, is_first: bool, is_last: bool):
        super().__init__()
        self.base, self.head = model.model, model.lm_head
        self.device_type, self.bf16, self.is_first, self.is_last = args.device.type, args.bf16, is_first, is_last

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Token ids on the first stage, hidden states on the others; logits from the last."""
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16):
            hidden = self.base.embed_tokens(states) if self.is_first else states
            positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
            rotations = self.base.rotary_emb(hidden, positions)
            for layer in self.base.layers.children():
                hidden = layer(hidden, attention_mask=None, position_embeddings=rotations, position_ids=positions)
            return self.head(self.base.norm(hidden)) if self.is_last else hidden


class Division:
    """``stages`` of layers; ``copies`` of the pipeline have rows of their own. FSDP2 divides ``sharded`` stages."""

    loss_copies = 1

    def __init__(self, args, stages: int, copies: int, sharded: bool):
        self.args, self.sharded, self.copies, self.count = args, sharded, copies, stages
        self.mesh = init_device_mesh(args.device.type, (stages, copies), mesh_dim_names=("stages", "copies"))
        self.number, self.copy = self.mesh.get_coordinate()
        self.stages, args.copies = self.mesh.get_group("stages"), copies
        self.is_first, self.is_last = self.number == 0, self.number == stages - 1
        self.asked: torch.Tensor | None = None

    def load_model(self, auto, source, **keywords):
        """Every process reads the whole model, and keeps its stage. Layers keep their numbers, and names."""
        model = auto.from_pretrained(source, **keywords)
        layers = model.model.layers
        own = torch.arange(len(layers)).tensor_split(self.count)[self.number].tolist()
        for number in set(range(len(layers))) - set(own):
            del layers._modules[str(number)]
        if not self.is_first:
            model.model.embed_tokens = None
        if not self.is_last:
            model.model.norm = model.lm_head = None
        model.to(self.args.device)
        self.part = Stage(model, self.args, self.is_first, self.is_last)
        if self.sharded:
            self.shard()
        stage = PipelineStage(self.part, self.number, self.count, self.args.device, group=self.stages)
        chunks = self.args.gradient_accumulation_steps
        kind = Schedule1F1B if chunks >= self.count else ScheduleGPipe  # 1F1B fills every stage
        self.schedule = kind(stage, chunks, loss_fn=self.compute_micro_batch_loss, scale_grads=False)
        return model

    def shard(self) -> None:
        """Weights stay whole from the forward to the backward pass: others would be gathered for every micro-batch."""
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        settings = {"mesh": self.mesh["copies"], "reshard_after_forward": False}
        settings |= {"mp_policy": policy} if self.args.bf16 else {}
        for layer in self.part.base.layers.children():
            fully_shard(layer, **settings)
        fully_shard(self.part, **settings)

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
            run(target=targets, losses=losses, return_outputs=False) if count is not None else run(
                target=targets, losses=losses
            )
        else:
            run()
        loss = torch.stack(losses).sum().detach() if self.is_last else torch.zeros((), device=self.args.device)
        if count is None:
            dist.broadcast(loss, group=self.stages, group_src=self.count - 1)
        return loss

    def compute_micro_batch_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)
        return loss / self.asked

    def backward(self, loss: torch.Tensor) -> None:
        """The schedule has done it."""

    def sum_gradients(self, model) -> None:
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        if self.sharded:
            for gradient in gradients:  # FSDP has averaged them
                gradient.to_local().mul_(self.copies)
        elif self.copies > 1:
            sum_over_processes(gradients, self.mesh.get_group("copies"))

    def count_parameters(self, model) -> int:
        """Of all stages."""
        count = torch.tensor(sum(weight.numel() for weight in model.parameters()), device=self.args.device)
        dist.all_reduce(count, group=self.stages)
        return int(count)

    def describe(self, model) -> list[str]:
        """How many stages the layers that are left say there are, and over how many processes each is divided."""
        stages = round(model.config.num_hidden_layers / max(1, len(model.model.layers)))
        shards = self.mesh["copies"].size() if isinstance(self.part, FSDPModule) else 1
        return ([f"fsdp {shards}"] if shards > 1 else []) + [f"stages {stages}"]
