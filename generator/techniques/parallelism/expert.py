from dataclasses import replace
from math import gcd

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_sharded
from generator.techniques.traits import Trait


class Expert(Technique):
    """Expert parallelism: the experts of a mixture are divided over the devices, tokens travel to them.

    What it does: experts whole on one device each, the rest of the model sharded as in FSDP2.
    When it loses: where the experts fit, and over slow links: every layer sends tokens out and back.
    Known problems: its size must divide the experts; the Trainer cannot save the optimizer of such a model.
    """

    axis = "parallelism"
    name = "expert"
    emitted = False
    provides = frozenset({Trait.DTENSOR, Trait.FSDP_RECOMPUTATION})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/expert_parallelism",
            "Qwen3-30B-A3B on 8 x H100, 2048 tokens: 2830 to 3485 tokens/s a GPU",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if not case.model.experts:
            return "the model has no experts"
        return explain_one_device(case) or (
            None if self.layouts(case) else f"{case.model.experts} experts cannot be divided evenly"
        )

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        # the size must divide the experts, and the devices over which everything else is sharded (DistributedConfig)
        sharded = list_sharded(case, "fsdp_full_shard")
        return tuple(replace(x, ep=n) for x in sharded if (n := gcd(x.devices, case.model.experts)) > 1)
