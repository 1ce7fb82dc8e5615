from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.model.block_traits import read_block_traits
from generator.techniques.base import Measured
from generator.techniques.edits import Edits
from generator.techniques.packing.flattened import Flattened


class SharedPrefix(Flattened):
    """The texts of a batch one after the other, and what all of them begin with computed once.

    What it does: as flattened; a system prompt that every conversation repeats costs one text's time, not each one's.
    When it loses: where texts begin with nothing in common, or stand alone in their micro-batch.
    Known problems: those of flattened; counted tokens per batch (SFTTrainer's num_tokens) leave out what is shared; dropout would
    be the same for all texts there, and a mixture of experts would balance over fewer tokens: neither takes it.
    """

    name = "shared-prefix"
    adds = 2
    evidence = (Measured("stock-cpu-bf16.json", "sft: generated without shared prefix"),)

    def obstacle(self, case: Case) -> str | None:
        if why := super().obstacle(case):
            return why
        if not case.workload.shared_tokens or not case.workload.fill_shares:
            return "texts were not seen to begin with the same tokens"
        if case.model.experts:
            return "the loss that balances experts counts every token: shared ones would be counted once"
        if read_block_traits(case.model.model_type).get("dropout"):
            return "dropout would be the same for all texts in what they share"
        if case.workload.lora_dropout and case.workload.train != "full":
            return "dropout of adapters would be the same for all texts in what they share"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**super().effects(case), "shared_tokens": case.workload.shared_tokens}

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return replace(
            edits,
            imports=(*edits.imports, "from shared_prefix import share_prefix"),
            fragments=(*edits.fragments, "shared_prefix"),
            after_trainer=("share_prefix(trainer)",),
        )
