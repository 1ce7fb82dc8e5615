from generator.case.strategies import RING
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.parallelism.fsdp2 import fsdp_clash


class Context(Technique):
    """Context parallelism (ring attention): every sequence is divided over devices, keys and values go around.

    For sequences whose activations do not fit one device. On top of FSDP2; SDPA and causal masks only.
    """

    axis = "parallelism"
    name = "context"
    emitted = False
    evidence = (
        Published("https://arxiv.org/abs/2310.01889", "ring attention: sequence length grows with the devices"),
    )

    def obstacle(self, case):
        if case.model.kind != "decoder":
            return "ring attention needs a causal mask"
        return explain_one_device(case) or (None if self.layouts(case) else "nothing divides evenly")

    def clash(self, other, case):
        if other.axis == "attention" and other.name != "sdpa":
            return "ring attention is written for SDPA"
        if other.axis == "packing" and other.name not in ("packed", "padded"):
            return "the sequence is cut into equal parts"
        return fsdp_clash(other, case)

    def layouts(self, case):
        found = list_split(case, "fsdp_full_shard", sequence_form=RING)
        return tuple(x for x in found if x.cp > 1 and case.workload.seq_len % (2 * x.cp) == 0)
