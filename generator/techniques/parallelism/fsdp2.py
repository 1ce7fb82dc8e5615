from generator.techniques.base import Published
from generator.techniques.sharding import Fsdp
from generator.techniques.traits import Trait


class Fsdp2(Fsdp):
    """FSDP2 (fully_shard): weights, gradients and optimizer states are all divided over the devices.

    What it does: PyTorch's own: each block's weights are gathered for its forward and again for its backward pass;
    float32 shards, 16-bit arithmetic.
    When it loses: where DDP fits: it sends 1.5 times as much.
    Known problems: offloads all or nothing; on CPUs Accelerate silently runs DDP; adapters' checkpointing stays the
    Trainer's.
    """

    name = "fsdp2"
    provides = frozenset({Trait.WEIGHTS_OFFLOAD, Trait.FSDP_RECOMPUTATION})
    evidence = (
        Published(
            "https://arxiv.org/abs/2304.11277",
            "FSDP: models that DDP cannot hold, near-linear TFLOPS to 512 A100",
        ),
    )
