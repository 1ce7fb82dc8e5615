from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.traits import Trait


class Tensor(Technique):
    """Tensor parallelism: every layer's matrices are divided over the devices of a node.

    What it does: no device holds a whole layer; what is left of the devices shards each part as in FSDP2 (Accelerate
    joins tensor parts with sharded copies, not with plain ones).
    When it loses: without NVLink or the like: two reductions of the hidden states per layer and pass, which nothing
    hides.
    Known problems: its size must divide query heads, key-value heads and the feed-forward width, or loading fails late.
    """

    axis = "parallelism"
    name = "tensor"
    modes = ("train", "infer")
    emitted = False
    provides = frozenset({Trait.DTENSOR, Trait.FSDP_RECOMPUTATION, Trait.TRANSFORMERS_MODEL})
    evidence = (Published("https://arxiv.org/abs/1909.08053", "76 % scaling efficiency over 8 GPUs with NVLink"),)

    def obstacle(self, case: Case) -> str | None:
        if why := explain_one_device(case):
            return why
        if case.workload.train == "qlora":
            return "packed 4-bit weights cannot be divided"
        return None if self.layouts(case) else explain_indivisible(case)

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "fsdp_full_shard", tp=True)
        even = tuple(x for x in divided if x.tp > 1 and divides_heads(case, x.tp))
        return even if case.workload.mode == "train" else tuple(x for x in even if x.dp == 1 and x.nodes == 1)


def divides_heads(case: Case, ways: int) -> bool:
    """Whether each device gets whole query heads and key-value heads, and an equal part of the feed-forward width."""
    model = case.model
    return all(n % ways == 0 for n in (model.heads, model.kv_heads, model.ffn) if n)


def explain_indivisible(case: Case) -> str:
    model = case.model
    return (
        f"no number of devices divides {model.heads} query heads, {model.kv_heads} key-value heads, "
        f"the feed-forward width {model.ffn} and the global batch"
    )
