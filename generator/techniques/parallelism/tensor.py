from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import TENSOR_FAULTS, WHOLE_LAYERS_TYPES, Looped, divides_tokens
from generator.techniques.traits import Trait


class Tensor(Looped):
    """Tensor parallelism: every layer's matrices are divided over the devices of a node, which share their rows.

    What it does: no device holds a whole layer, nor its activations; rows need not be divided.
    When it loses: without NVLink or the like: two reductions of the hidden states per layer and pass, which nothing
    hides.
    Known problems: its size must divide query heads, key-value heads and the feed-forward width, or loading fails late,
    and of models without experts the tokens of a row; the Trainer cannot save it, so it trains with a loop of its own;
    run on CPUs over gloo, never on GPUs.
    """

    name = "tensor"
    model_types: ClassVar = WHOLE_LAYERS_TYPES - TENSOR_FAULTS.keys()
    faults: ClassVar = TENSOR_FAULTS
    trained: ClassVar = ("full", "lora")
    modes = ("train", "infer")
    provides = frozenset({Trait.DTENSOR, Trait.TRANSFORMERS_MODEL})
    evidence = (Published("https://arxiv.org/abs/1909.08053", "76 % scaling efficiency over 8 GPUs with NVLink"),)

    def explain_model(self, case: Case) -> str | None:
        return "packed 4-bit weights cannot be divided" if case.workload.train == "qlora" else None

    def uneven(self, case: Case) -> str:
        return explain_indivisible(case)

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "none", tp=True)
        even = tuple(x for x in divided if x.tp > 1 and x.dp == 1 and divides_model(case, x.tp))
        return even if case.workload.mode == "train" else tuple(x for x in even if x.nodes == 1)

    def explain_unemitted(self, case: Case) -> str | None:
        return explain_dropout(case) or super().explain_unemitted(case)


def explain_dropout(case: Case) -> str | None:
    """Why adapters cannot be divided so (templates/fragments/adapter_parts.py), or ``None``."""
    dropout = case.workload.train != "full" and case.workload.lora_dropout
    return "adapters in tensor parts were run without --lora-dropout" if dropout else None


def divides_model(case: Case, ways: int) -> bool:
    """Whether each device gets whole query heads and key-value heads, equal parts of the feed-forward width and of each row, and a
    part of the vocabulary, which may be smaller than the others' (torch.chunk: of few words the last parts would be empty)."""
    words = case.model.vocab
    even = all(size % ways == 0 for size in list_divided(case).values() if size)
    return even and (case.workload.mode == "infer" or -(-words // ways) * (ways - 1) < words)


def list_divided(case: Case) -> dict[str, int]:
    """What tensor parts divide, as a refusal names it, and its size."""
    model, tokens = case.model, case.workload.seq_len
    divided = {
        f"{model.heads} query heads": model.heads,
        f"{model.kv_heads} key-value heads": model.kv_heads,
        f"the feed-forward width {model.ffn}": model.ffn,
    }
    if case.workload.mode == "train" and divides_tokens(case):
        divided[f"rows of {tokens} tokens"] = tokens
    return divided


def explain_indivisible(case: Case) -> str:
    few = [f"{case.model.vocab} words"] if case.model.vocab < case.devices_per_node**2 else []
    return f"no number of devices divides {', '.join([*list_divided(case), *few])} and the global batch"
