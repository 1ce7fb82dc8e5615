from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.packing.padded import estimate_lengths, explain_one_stream
from generator.techniques.padding import MASKLESS
from generator.techniques.traits import Trait


class Flattened(Technique):
    """The texts of a batch one after the other, without padding, each attended to by itself.

    What it does: no padding is computed, batches keep their texts and their order, and loss and gradients are the same.
    When it loses: where lengths hardly differ, and where a micro-batch has one text: nothing is padded there.
    Known problems: attention is called once a text, so that many short ones cost calls; offered only for model types on
    which it was compared with padding; a rare batch of long texts takes more memory than is planned for.
    """

    axis = "packing"
    name = "flattened"
    provides = frozenset({Trait.VARYING_SHAPES, Trait.FLATTENED_ROWS})
    needs: ClassVar = {Trait.SDPA: "it calls PyTorch's scaled_dot_product_attention for each text by itself"}
    evidence = (
        Published(
            "https://huggingface.co/blog/packing-with-FA2",
            "padding-free batches: up to twice the throughput where lengths differ, the same convergence",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if not case.on_cpu:
            return "off the CPU, texts one after the other take a kernel for them, not one call each"
        return explain_unequal_flattening(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**estimate_lengths(case, 0.0, "dealt"), "rows": "sdpa"}

    def edits(self, case: Case) -> Edits:
        return make_flattening_edits(case, "row_attention")


def explain_unequal_flattening(case: Case) -> str | None:
    """Why texts one after the other cannot be trained on, or would give another loss, or ``None``."""
    if case.workload.task_facts.classifies:
        return "every text has its own label: the head reads one token a sequence"
    if case.portable:
        return "the machine is not known"
    if case.model.model_type in WINDOW_IN_MASK and any(kind.window for kind in case.model.attended):
        return f"models of type {case.model.model_type} tell their window to the mask alone, and there is none"
    if case.model.model_type not in FLATTENED:
        return f"not verified equal to padding for models of type {case.model.model_type}"
    return explain_one_stream(case)


def make_flattening_edits(case: Case, *fragments: str) -> Edits:
    """``fragments``: the first has the function that replaces the model's attention. Several processes wait for the one with the most
    tokens, and no padding evens them out: rows are dealt out."""
    imports: tuple[str, ...] = (f"from {fragments[0]} import attend_within_rows",)
    callbacks: tuple[str, ...] = ()
    if case.layout.dp > 1:
        imports = ("from balanced_processes import BalanceProcesses", *imports)
        callbacks, fragments = (BALANCE,), (*fragments, "balanced_processes", "epoch_order")
    return Edits(
        imports=imports,
        fragments=fragments,
        callbacks=callbacks,
        after_model=("attend_within_rows(model)",),
        training_arguments=(
            make_argument("padding_free", True, "the texts of a batch one after the other"),
            make_argument("max_length", None, "data.py has cut them; padding_free refuses a length"),
        ),
    )


BALANCE = 'BalanceProcesses(train_dataset, CONFIG["seq_len"])'
WINDOW_IN_MASK = ("qwen2_moe",)
"""Types whose attention is not told its window (Transformers 5.23, Qwen2MoeAttention): over texts one after the other it would reach
further than over padded ones."""
FLATTENED = MASKLESS.difference(["nemotron", "stablelm"]).union(
    ["ernie4_5_moe", "flex_olmo", "glm4_moe", "granitemoeshared"]
)
"""Model types whose loss and gradients are the same for texts one after the other: tests/test_flattened.py computes both ways.
The blocks of nemotron and stablelm do not tell their attention where texts begin."""
