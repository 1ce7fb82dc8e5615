from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument
from generator.techniques.layouts import explain_one_device


class DeviceMap(Technique):
    """device_map="auto": consecutive layers on different devices, one of which works at a time.

    The simplest way to serve what one device cannot hold. The devices add memory, not speed.
    """

    axis = "parallelism"
    name = "device-map"
    modes = ("infer",)
    evidence = (
        Published(
            "https://huggingface.co/docs/accelerate/en/concept_guides/big_model_inference",
            "layers are filled in device by device; only one device is active at a time",
        ),
    )

    def obstacle(self, case):
        return explain_one_device(case)

    def clash(self, other, case):
        if other.id == "compile=static-decode":
            return "the hooks that carry tensors from device to device break the compiled graph"
        return None

    def layouts(self, case):
        return tuple(Layout(per_node=n, pp=n) for n in range(2, min(case.devices_per_node, case.model.layers) + 1))

    def edits(self, case):
        return Edits(infer_model_arguments=(argument("device_map", "auto", "layers spread over the devices"),))
