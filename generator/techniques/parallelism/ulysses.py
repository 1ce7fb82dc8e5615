from generator.case.strategies import ULYSSES
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.parallelism.zero1 import deepspeed_clash


class Ulysses(Technique):
    """Ulysses sequence parallelism (DeepSpeed): sequences are divided, and for attention the heads instead.

    As context parallelism with less traffic, where the number of heads can be divided. On top of ZeRO-3.
    """

    axis = "parallelism"
    name = "ulysses"
    emitted = False
    evidence = (
        Published("https://arxiv.org/abs/2309.14509", "2.5 times faster than tensor-based sequence parallelism"),
    )

    def obstacle(self, case):
        if case.model.kind != "decoder":
            return "it is written for causal language models"
        return explain_one_device(case) or (
            None if self.layouts(case) else "the heads or the batch cannot be divided evenly"
        )

    def clash(self, other, case):
        if other.id == "attention=eager":
            return "it needs SDPA or flash attention"
        return deepspeed_clash(other)

    def layouts(self, case):
        found = list_split(case, "zero3", sequence_form=ULYSSES)
        seq_len = case.workload.seq_len
        return tuple(x for x in found if x.cp > 1 and case.model.heads % x.cp == 0 and seq_len % x.cp == 0)
