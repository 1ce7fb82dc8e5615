from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.model import ModelSpec
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device
from generator.techniques.traits import Trait


class Served(Technique):
    """The engine divides each layer over devices (tensor parallelism), layers over nodes, and runs copies of the model.

    What it does: serves what one device cannot hold, answers sooner by dividing, or answers more by copies: two copies on
    four devices each serve more than one on eight.
    When it loses: without NVLink, dividing waits for two reductions a layer and token.
    Known problems: its size must divide the heads, and packed weights into whole groups; more devices than key-value heads hold copies of them.
    """

    axis = "parallelism"
    name = "served"
    modes = ("infer",)
    needs: ClassVar = {Trait.DIVIDES_SERVED_MODEL: "{other} does not divide a served model by itself; only {able} do"}
    evidence = (
        Published("https://arxiv.org/abs/1909.08053", "tensor parallelism: two all-reduces a layer"),
        Published(
            "https://docs.vllm.ai/en/latest/serving/parallelism_scaling/",
            "tensor parallelism within a node, pipeline parallelism between nodes, data parallelism for more requests",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_one_device(case) or (None if self.layouts(case) else f"nothing divides {case.model.heads} heads")

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        """Copies within a node; one copy over several nodes, each of which holds some of the layers."""
        ways = [n for n in list_powers(case.devices_per_node) if divides_served_heads(case, n)]
        inside = [
            Layout(per_node=tp * copies, tp=tp, replicate=copies)
            for tp in ways
            for copies in range(1, case.devices_per_node // tp + 1)
            if tp * copies > 1 and copies <= max(1, case.workload.concurrency)
        ]
        across = [
            Layout(nodes=nodes, per_node=tp, tp=tp, pp=nodes)
            for tp in ways[-1:]
            for nodes in list_powers(case.nodes)[1:]
            if nodes <= case.model.layers
        ]
        return (*inside, *across)


def list_powers(most: int) -> list[int]:
    """1, 2, 4, … up to ``most``."""
    return [1 << k for k in range(most.bit_length()) if 1 << k <= most]


def divides_served_heads(case: Case, ways: int) -> bool:
    """Query heads come out even; key-value heads do, or are copied to several devices (vllm's llama.py)."""
    model = case.model
    shared = not model.kv_heads or model.kv_heads % ways == 0 or ways % model.kv_heads == 0
    return model.heads % ways == 0 and model.ffn % ways == 0 and shared and divides_stored_groups(model, ways)


def divides_stored_groups(model: ModelSpec, ways: int) -> bool:
    """Each part of a packed layer holds whole groups of weights that share a scale, or vLLM ends at its start (0.33: distributed/utils.py,
    verify_group_size_divides_partition; quantization/utils/fp8_utils.py, which cuts the blocks of experts in fp8 smaller)."""
    experts = 0 if model.stored_format == "float8" else model.expert_ffn
    widths = (model.ffn, model.shared_expert_ffn, experts)
    return ways == 1 or not any(width % (ways * model.stored_group) for width in widths)
