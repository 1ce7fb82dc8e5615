from dataclasses import replace

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.sharding import Fsdp
from generator.techniques.traits import Trait

READ_BY_EACH = {
    "fsdp_config.fsdp_cpu_ram_efficient_loading": False,
    "fsdp_config.fsdp_sync_module_states": False,
}
"""Accelerate 1.15 sends no packed weights from the first process to the others (fsdp2_prepare_model), and would leave them empty."""


class Fsdp2Packed(Fsdp):
    """FSDP2 of a base in 4 bits (FSDP-QLoRA): packed weights are divided over the devices, and gathered packed.

    What it does: trains adapters of a model that not even in 4 bits fits one device: 70B on two cards of 24 GB.
    When it loses: wherever ddp fits: every block is gathered twice in a micro-batch.
    Known problems: each process reads the whole checkpoint, and keeps embedding, head and scales whole in host memory
    until they are divided; the scales of the packed values stay whole on every device; run on CPUs over gloo, never on GPUs.
    """

    name = "fsdp2-packed"
    last_resort = 1
    provides = frozenset({Trait.WEIGHTS_OFFLOAD, Trait.FSDP_RECOMPUTATION, Trait.PACKED_SHARDS})
    evidence = (
        Published(
            "https://www.answer.ai/posts/2024-03-06-fsdp-qlora.html",
            "Llama 2 70B on two cards of 24 GB: bnb_4bit_quant_storage makes packed weights divisible",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.train != "qlora":
            return "it is for weights packed in 4 bits: --train qlora"
        return super().obstacle(case)

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return replace(edits, accelerate=tuple((dict(edits.accelerate) | READ_BY_EACH).items()))
