from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.checkpointing.full import Full
from generator.techniques.traits import Trait


class Offloaded(Full):
    """Full checkpointing whose layer inputs wait in host memory for the backward pass.

    What it does: frees layers x tokens x hidden of device memory, what is largest in long sequences; the numbers are
    the same.
    When it loses: where it fits without: each input crosses the link twice, on the stream that computes.
    Known problems: page-locked memory of the host, rounded up to a power of two for each layer; needs an accelerator.
    """

    name = "offloaded"
    last_resort = 1
    excludes: ClassVar = {
        Trait.DTENSOR: "it was not run on sharded tensors (DTensor), whose library recomputes by itself",
        Trait.DEEPSPEED_ENGINE: "it was not run beside DeepSpeed, which offloads states",
        Trait.COMPILED_BLOCKS: "copies to the host break the compiled graph, and were not run beside compiled layers",
    }
    evidence = (
        Published(
            "https://unsloth.ai/blog/long-context",
            "inputs of checkpointed layers in host memory: Llama-3 70B from 7k to 48k tokens on 80 GB, 1.9 % slower",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.on_cpu or case.portable:
            return "there is no accelerator to offload from"
        return super().obstacle(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**super().effects(case), "checkpoint_offload": True}

    def list_settings(self, case: Case) -> dict[str, object]:
        return {**super().list_settings(case), "offload": True}

    def write_comment(self, case: Case) -> str:
        return "recompute each layer; its input waits on the host"
