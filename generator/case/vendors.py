"""What planning and emission must know of a maker's accelerators: one row a vendor. A new vendor starts with a row here.

A vendor without a row is detected and priced by hand-given device specs only; ``perfgen plan`` says that it cannot plan for it.
Beside its row a vendor needs device files (hwdetect/devices), a probe (hwdetect/probes) and builds of torch (stacks.toml).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from generator.case.stacks import choose_cuda_build

TENSOR_CORE_MULTIPLE = 8
"""values in 16 bits (NVIDIA's deep learning performance guide, "Matrix Multiplication Background")"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """``torch_device`` is the device string of PyTorch, ``backend`` the one of torch.distributed, ``visible_devices`` the
    variable that hides devices. ``choose_build`` names the build of torch from role, capability, driver and the device's name;
    it raises ``UsageError`` where none runs. ``pad_to_multiple_of``: lengths in tokens that its matrix units like, if any.
    """

    name: str
    torch_device: str
    backend: str
    visible_devices: str | None = None
    choose_build: Callable[[str, str | None, str | None, str], str]
    pad_to_multiple_of: int | None = None


CPU = Vendor(
    name="cpu", torch_device="cpu", backend="gloo", choose_build=lambda role, capability, driver, device: "cpu"
)
"""any processor, whoever made it"""
VENDORS = {
    "nvidia": Vendor(
        name="nvidia",
        torch_device="cuda",
        backend="nccl",
        visible_devices="CUDA_VISIBLE_DEVICES",
        choose_build=choose_cuda_build,
        pad_to_multiple_of=TENSOR_CORE_MULTIPLE,
    ),
}
"""the vendors whose accelerators can be planned for, by the name that hwdetect gives them"""
