from generator.techniques.base import Published, Technique
from generator.techniques.launch import make_fsdp_edits
from generator.techniques.layouts import explain_one_device, explain_uneven, list_sharded


class Fsdp2(Technique):
    """FSDP2 (fully_shard): weights, gradients and optimizer states are all divided over the devices.

    PyTorch's own: each block's weights are gathered for its forward and again for its backward pass. Float32 shards, 16-bit
    arithmetic. Checkpoints are written shard by shard.
    """

    axis = "parallelism"
    name = "fsdp2"
    strategy = "fsdp_full_shard"
    reshard = True
    adds = 2  # accelerate.yaml, and its launcher
    evidence = (
        Published(
            "https://arxiv.org/abs/2304.11277",
            "FSDP: models that DDP cannot hold, near-linear TFLOPS to 512 A100",
        ),
    )

    def obstacle(self, case):
        return explain_one_device(case) or needs_cuda(case) or explain_uneven(case, self.layouts(case))

    def clash(self, other, case):
        return fsdp_clash(other, case)

    def layouts(self, case):
        return list_sharded(case, self.strategy)

    def edits(self, case):
        return make_fsdp_edits(case, reshard=self.reshard)


def needs_cuda(case) -> str | None:
    return None if case.on_cuda else "Accelerate shards on accelerators only; elsewhere it silently runs DDP"


def fsdp_clash(other, case) -> str | None:
    if other.axis == "optimizer" and other.name not in ("adamw", "adamw-fused"):
        return f"{other.name} was not written for sharded tensors (DTensor)"
    if other.id == "precision=fp16":
        return "fp16's loss scaling was not run on sharded gradients (DTensor); DeepSpeed brings its own"
    if other.axis == "checkpointing" and other.name not in ("off", "full") and case.workload.train == "full":
        return "FSDP recomputes every layer or none"
    if other.id == "trained=qlora":
        return "packed 4-bit weights cannot be sharded tensors"
    return None
