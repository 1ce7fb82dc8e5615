from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.compile.static_decode import StaticDecode
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.traits import Trait

MODE = "max-autotune"


class TunedDecode(StaticDecode):
    """Compile the decoding step with kernels that are timed (mode max-autotune): products with one row become Inductor's own.

    What it does: as static-decode; Inductor writes the products of one token itself, and unpacks weights as they are read.
    When it loses: for few answers: it times kernels before the first one, which the estimate does not count.
    Known problems: those of static-decode; never run on a GPU by perfgen's authors.
    """

    name = "tuned-decode"
    adds = 2
    provides = frozenset({Trait.FUSES_UNPACKING})
    needs: ClassVar = {
        Trait.UNPACKED_BY_OPERATORS: "such products were measured of weights that are unpacked so ({able}), not with quantization={other}"
    }
    evidence = (
        Published(
            "https://github.com/meta-pytorch/gpt-fast",
            "int8 weight-only, compiled with coordinate descent tuning: 155.6 tokens/s for 104.9 in bf16 (Llama-2-7B, A100)",
        ),
    )

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": MODE}

    def edits(self, case: Case) -> Edits:
        """Where generate compiles. A server's mode is in its config.yaml."""
        if case.workload.serves:
            return Edits()
        return Edits(
            infer_imports=("from transformers import CompileConfig",),
            infer_generate_arguments=(
                make_argument(
                    "compile_config",
                    Code(f'CompileConfig(mode="{MODE}")'),
                    "weights are unpacked within the products of a token",
                ),
            ),
        )
