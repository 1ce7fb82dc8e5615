from dataclasses import replace
from math import gcd

from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_sharded
from generator.techniques.parallelism.fsdp2 import fsdp_clash


class Expert(Technique):
    """Expert parallelism: the experts of a mixture are divided over the devices, tokens travel to them.

    For mixtures whose experts do not fit; the rest of the model is sharded as in FSDP2.
    """

    axis = "parallelism"
    name = "expert"
    emitted = False
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/expert_parallelism",
            "Qwen3-30B-A3B on 8 x H100, 2048 tokens: 2830 to 3485 tokens/s a GPU",
        ),
    )

    def obstacle(self, case):
        if not case.model.experts:
            return "the model has no experts"
        return explain_one_device(case) or (
            None if self.layouts(case) else f"{case.model.experts} experts cannot be divided evenly"
        )

    def clash(self, other, case):
        return fsdp_clash(other, case)

    def layouts(self, case):
        # the size must divide the experts, and the devices over which everything else is sharded (DistributedConfig)
        found = list_sharded(case, "fsdp_full_shard")
        return tuple(replace(x, ep=n) for x in found if (n := gcd(x.devices, case.model.experts)) > 1)
