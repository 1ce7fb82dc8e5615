from generator.techniques.base import Published
from generator.techniques.parallelism.context import Context
from generator.techniques.traits import Trait


class ContextFsdp2(Context):
    """Context parallelism on top of FSDP2: sequences are divided, and weights, gradients and states over all devices.

    What it does: one long sequence over several devices whose model does not fit one of them.
    When it loses: where a sequence's activations fit one device: FSDP2 alone.
    Known problems: as context, but for the weights.
    """

    name = "context-fsdp2"
    strategy = "fsdp_full_shard"
    provides = frozenset({Trait.DTENSOR})
    evidence = (
        Published("https://arxiv.org/abs/2310.01889", "ring attention: sequence length grows with the devices"),
    )
