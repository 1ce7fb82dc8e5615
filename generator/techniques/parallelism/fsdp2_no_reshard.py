from generator.techniques.base import Published
from generator.techniques.sharding import Fsdp
from generator.techniques.traits import Trait


class Fsdp2NoReshard(Fsdp):
    """FSDP2 that keeps gathered weights from the forward to the backward pass (reshard_after_forward off).

    What it does: one gather per step less than fsdp2: what ZeRO-2 does.
    When it loses: where the 16-bit weights do not fit whole on every device, as they stay there through the backward
    pass.
    Known problems: as fsdp2; its memory is nearer to DDP's than to fsdp2's while a step runs.
    """

    name = "fsdp2-no-reshard"
    strategy = "fsdp_shard_grad_op"
    reshard = False
    provides = frozenset({Trait.FSDP_RECOMPUTATION})
    evidence = (
        Published(
            "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
            "reshard_after_forward=False keeps the unsharded parameters and saves the all-gather in backward",
        ),
    )
