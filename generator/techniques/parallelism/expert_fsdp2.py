from dataclasses import replace
from math import gcd

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.layouts import list_sharded
from generator.techniques.parallelism.expert import Expert


class ExpertFsdp2(Expert):
    """Expert parallelism with FSDP2: the experts of a mixture are divided over the devices, tokens travel to them.

    What it does: experts whole on one device each, the rest of the model sharded as in FSDP2; every device has rows of
    its own.
    When it loses: where the experts fit, and over slow links: every layer sends tokens out and back.
    Known problems: its size must divide the experts; the Trainer cannot save the optimizer of such a model; run on CPUs
    over gloo, never on GPUs.
    """

    name = "expert-fsdp2"

    def uneven(self, case: Case) -> str:
        return f"{case.model.experts} experts cannot be divided evenly"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        # the size must divide the experts, and the devices over which everything else is sharded (DistributedConfig)
        sharded = list_sharded(case, "fsdp_full_shard")
        return tuple(replace(x, ep=n) for x in sharded if (n := gcd(x.devices, case.model.experts)) > 1)
