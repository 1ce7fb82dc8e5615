from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.parallelism.fsdp2 import fsdp_clash


class Tensor(Technique):
    """Tensor parallelism: every layer's matrices are divided over the devices of a node.

    Two reductions of the hidden states a layer and pass, which nothing hides: only over NVLink or the like, and when one layer does
    not fit or latency counts. Its size must divide query heads, key-value heads and the feed-forward width. What is left of the
    devices shards each part as in FSDP2: Accelerate joins tensor parts with sharded copies, not with plain ones.
    """

    axis = "parallelism"
    name = "tensor"
    modes = ("train", "infer")
    emitted = False
    evidence = (Published("https://arxiv.org/abs/1909.08053", "76 % scaling efficiency over 8 GPUs with NVLink"),)

    def obstacle(self, case):
        if why := explain_one_device(case):
            return why
        if case.workload.train == "qlora":
            return "packed 4-bit weights cannot be divided"
        return None if self.layouts(case) else indivisible(case)

    def clash(self, other, case):
        return fsdp_clash(other, case) if case.workload.mode == "train" else None

    def layouts(self, case):
        found = tuple(x for x in list_split(case, "fsdp_full_shard", tp=True) if x.tp > 1 and divides_heads(case, x.tp))
        return found if case.workload.mode == "train" else tuple(x for x in found if x.dp == 1 and x.nodes == 1)


def divides_heads(case, ways: int) -> bool:
    """Whether each device gets whole query heads and key-value heads, and an equal part of the feed-forward width."""
    model = case.model
    return all(n % ways == 0 for n in (model.heads, model.kv_heads, model.ffn) if n)


def indivisible(case) -> str:
    model = case.model
    return (
        f"no number of devices divides {model.heads} query heads, {model.kv_heads} key-value heads, "
        f"the feed-forward width {model.ffn} and the global batch"
    )
