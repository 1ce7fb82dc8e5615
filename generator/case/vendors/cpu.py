"""Any processor, whoever made it. What its instructions can do, techniques ask hwdetect/catalog/cpu.py."""

from __future__ import annotations

from generator.case.vendors.vendor import Vendor, has

WITH_WHEELS = ("x86_64", "amd64", "aarch64", "arm64", "s390x")
"""of PyTorch's builds (https://github.com/pytorch/pytorch/blob/main/.github/scripts/generate_binary_build_matrix.py, opened 2026-11)"""


def explain_without_wheels(architecture: str | None) -> str | None:
    """Why nothing can be installed on a host of this architecture, whatever its accelerators; ``None`` where it can, or is not known."""
    if architecture is None or architecture.lower() in WITH_WHEELS:
        return None
    return (
        f"neither PyPI nor PyTorch's own index has torch for {architecture}: it is built from source there, and so are tokenizers "
        "and safetensors, which no pinned stack can say"
    )


CPU = Vendor(
    name="cpu",
    title="CPU",
    torch_device="cpu",
    guard="cpu",
    backend="gloo",
    choose_build=lambda role, device, driver: "cpu",
    abilities={"flash": has, "compile": has},
)
