from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.quantization.torchao_int8 import NOT_IN_BF16, explain_uncompiled, make_torchao_edits
from generator.techniques.traits import Trait

GROUP = 32
"""weights that share a scale: the smallest that PyTorch's kernel takes, of which gpt-fast's rows are"""


class TorchaoInt4(Technique):
    """Serve 4-bit weights of torchao by PyTorch's own product for them (tinygemm), in a compiled step.

    What it does: reads little more than a quarter of what 16 bits do for every token, in Transformers itself.
    When it loses: for long prompts: the kernel reads the weights again for every 16 tokens.
    Known problems: answers change more than with 8 bits; the output layer and experts in one tensor stay
    in 16 bits; inputs are filled up to a multiple of 1,024, which small models pay in memory.
    """

    axis = "quantization"
    name = "torchao-int4"
    modes = ("infer",)
    provides = frozenset({Trait.UNPACKED_BY_OPERATORS, Trait.TRANSFORMERS_MODEL})
    needs: ClassVar = {
        Trait.FUSES_UNPACKING: "with compile={other} nobody measured it: what is known is of steps that are compiled so ({able})"
    }
    excludes: ClassVar = NOT_IN_BF16
    quality = 2
    quality_note = "weights are rounded to 4 bits, in groups of 32"
    evidence = (
        Published(
            "https://github.com/meta-pytorch/gpt-fast",
            "int4 weight-only, groups of 32, compiled: 196.8 tokens/s for 104.9 in bf16 (Llama-2-7B, A100)",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_uncompiled(case) or case.explain_missing("tinygemm")

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "torchao-int4-g32"}

    def edits(self, case: Case) -> Edits:
        """The packing that needs no package beside torch: the default one multiplies by MSLK's kernels."""
        settings = f'Int4WeightOnlyConfig(group_size={GROUP}, int4_packing_format="tile_packed_to_4d")'
        return make_torchao_edits("Int4WeightOnlyConfig", settings)
