from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.precision.bf16 import Bf16
from generator.techniques.traits import Trait

TILE = 16
"""torch._scaled_mm takes inputs and outputs in multiples of it."""


class Fp8Tensorwise(Bf16):
    """Multiply in 8 bits (float8, torchao), one scale for a tensor; everything else as in bf16.

    What it does: products of the blocks at twice the rate of bf16; weights, gradients and states stay as they are.
    When it loses: in small models and batches, where scaling and casting cost more than the products save.
    Known problems: FSDP2 gathers in 16 bits; the output layer stays in 16 bits, and routed experts would; emulated on
    a CPU for its tests, never run on a GPU by perfgen's authors.
    """

    name = "fp8-tensorwise"
    modes = ("train",)
    quality = 1
    quality_note = (
        "products take 8-bit inputs: published runs of 1.8B to 405B keep their loss; watch yours against bf16"
    )
    adds = 2
    recipe: ClassVar[str] = "tensorwise"
    needs: ClassVar = {
        Trait.COMPILED_BLOCKS: "without torch.compile, scales and casts cost more than 8-bit products save"
    }
    evidence = (
        Published(
            "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md",
            "Llama 3.1 8B on 8 H100, FSDP2: 5,762 tokens/s eager, 6,667 compiled, 8,532 with float8: 1.28 times the compiled",
        ),
        Published(
            "https://pytorch.org/blog/training-using-float8-fsdp2/",
            "1.8B to 405B: up to 50 % more throughput than bf16, loss and evaluations on par",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if why := case.explain_missing("fp8"):
            return why
        if case.workload.train != "full":
            return "adapters: frozen layers would have to be scaled beside them, which was not run"
        if case.model.experts:
            return "routed experts are one tensor, which torchao.float8 leaves in 16 bits"
        if case.model.hidden % TILE or case.model.ffn % TILE:
            return f"its kernels take widths in multiples of {TILE}"
        if case.device.flops("fp8") is None:
            return f"the catalogue knows no fp8 rate of {case.device.name}"
        return case.stack.why_missing("torchao") or super().obstacle(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**super().effects(case), "autocast_dtype": "float8"}

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return replace(
            edits,
            imports=(*edits.imports, "from float8 import multiply_in_float8"),
            fragments=("float8",),
            after_model=(*edits.after_model, f'multiply_in_float8(model, "{self.recipe}")'),
            requirements=(*edits.requirements, "torchao"),
        )
