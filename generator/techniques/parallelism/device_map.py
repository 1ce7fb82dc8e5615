from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.layouts import explain_one_device
from generator.techniques.traits import Trait


class DeviceMap(Technique):
    """device_map="auto": consecutive layers on different devices, one of which works at a time.

    What it does: serves what one device cannot hold, with one argument.
    When it loses: in speed against whatever fits one device: the devices add memory only.
    Known problems: its hooks carry tensors from device to device, so that nothing is compiled; not for training.
    """

    axis = "parallelism"
    name = "device-map"
    modes = ("infer",)
    provides = frozenset({Trait.TRANSFORMERS_MODEL})
    excludes: ClassVar = {
        Trait.COMPILED_GRAPH: "the hooks that carry tensors from device to device break the compiled graph",
    }
    evidence = (
        Published(
            "https://huggingface.co/docs/accelerate/en/concept_guides/big_model_inference",
            "layers are filled in device by device; only one device is active at a time",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.devices_per_node == 1 and case.nodes > 1:
            return "each node has one device, and one process reaches those of its own node"
        return explain_one_device(case)

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return tuple(Layout(per_node=n, pp=n) for n in range(2, min(case.devices_per_node, case.model.layers) + 1))

    def edits(self, case: Case) -> Edits:
        return Edits(infer_model_arguments=(make_argument("device_map", "auto", "layers spread over the devices"),))
