from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.checkpointing.full import Full
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait

TILE_TOKENS = 2048
"""of templates/fragments/tiled_layers.py"""
VERIFIED = frozenset(
    {"gemma", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"}
)
"""Model types on which the emitted function gave the loss and the gradients of the layer as it was (tests/test_tiled_layers.py)."""


class Tiled(Full):
    """Full checkpointing whose norms and feed-forward are computed in tiles of the sequence, again in the backward pass.

    What it does: of a layer's insides only attention's are held for the whole sequence; adapters share one input
    in place of a copy each. The numbers are the same.
    When it loses: wherever a layer's insides fit: the feed-forward runs once more, and 4-bit weights are unpacked for
    every tile.
    Known problems: replaces the forward of modules, so it is offered only for model types on which it was compared.
    """

    name = "tiled"
    last_resort = 1
    excludes: ClassVar = {
        Trait.DTENSOR: "tiles would gather a layer's weights again, and were not run on sharded tensors (DTensor)",
        Trait.DEEPSPEED_ENGINE: "DeepSpeed's hooks would fetch a layer's weights for every tile",
        Trait.COMPILED_BLOCKS: "the loop over tiles breaks the compiled graph, and what compiled layers keep of tiles was never traced",
    }
    evidence = (
        Published(
            "https://arxiv.org/abs/2506.13996",
            "tiled feed-forward and loss: Llama 3 8B on one H100 from 32k to 160k tokens, and more with offloaded inputs",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.model.model_type not in VERIFIED:
            return f"not verified equal to plain layers for models of type {case.model.model_type}"
        if case.workload.seq_len <= TILE_TOKENS:
            return f"a sequence of {case.workload.seq_len} tokens is one tile"
        return super().obstacle(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**super().effects(case), "tile_tokens": TILE_TOKENS}

    def edits(self, case: Case) -> Edits:
        return replace(
            super().edits(case),
            imports=("from tiled_layers import tile_layers",),
            fragments=("tiled_layers",),
            after_trainer=("tile_layers(trainer.model)",),
        )
