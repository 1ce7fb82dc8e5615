"""AMD's GPUs: ROCm, which PyTorch calls "cuda" too (``torch.version.hip`` tells). What they can do follows from the architecture."""

from __future__ import annotations

from generator.case.stacks import choose_build_of, list_builds
from generator.case.vendors.vendor import Container, Rule, Vendor, has
from generator.errors import UsageError
from hwdetect.types import Device

GFX = {
    "gcn5": ("gfx906",),
    "cdna": ("gfx908",),
    "cdna2": ("gfx90a",),
    "cdna3": ("gfx942",),
    "cdna4": ("gfx950",),
    "rdna2": ("gfx1030",),
    "rdna3": ("gfx1100", "gfx1101", "gfx1102"),
    "rdna3.5": ("gfx1150", "gfx1151"),
    "rdna4": ("gfx1200", "gfx1201"),
}
"""LLVM's names of the targets that PyTorch's ROCm wheels have kernels for, by architecture of the catalogue
(https://github.com/pytorch/pytorch/blob/main/.ci/docker/manywheel/build.sh, PYTORCH_ROCM_ARCH; opened 2026-11)."""
OF_ONE_TARGET = {"rx-7600": ("gfx1102",), "rx-7600-xt": ("gfx1102",)}
"""devices of which one target of their architecture's is known: what others of it have kernels for says nothing of them"""
NOT_BUILT = {"rx-6700-xt": "gfx1031"}
"""targets that they leave out, by device of the catalogue"""
INSTINCT = ("cdna2", "cdna3", "cdna4")
WITH_MATRIX_UNITS = ("cdna", *INSTINCT, "rdna3", "rdna3.5", "rdna4")
COMPILED = (*INSTINCT, "rdna3", "rdna3.5", "rdna4")


GTT_SHARE = 0.5
"""of the host's memory, which the kernel lends an APU unless `ttm.pages_limit` says otherwise: 62.47 of 124.92 GiB on a Strix Halo
(https://github.com/unslothai/unsloth/pull/7960)"""


def share_memory(device: Device, memory_bytes: int) -> int:
    return round(memory_bytes * GTT_SHARE) if device.architecture == "rdna3.5" else memory_bytes


FLOAT8 = {"cdna3": "fnuz", "cdna4": "OCP", "rdna4": "OCP"}
"""Forms of 8-bit floating point that matrix units multiply, by architecture: gfx942 has its own, whose e4m3 ends at 240 and has no
negative zero (torch.float8_e4m3fnuz), gfx950 and gfx12xx that of the Open Compute Project, which NVIDIA has too. torchao 0.18
(float8/config.py) casts to the form of the board it finds; a checkpoint is stored in OCP's, which vLLM casts to gfx942's as it loads
(normalize_e4m3fn_to_e4m3fnuz)"""


def explain_float8(device: Device) -> str | None:
    if device.architecture in FLOAT8:
        return None
    return f"8-bit products begin with CDNA 3 (gfx942: fnuz), CDNA 4 (gfx950: OCP) and RDNA 4 (OCP), not {device.name}"


def on(architectures: tuple[str, ...], why: str) -> Rule:
    """An ability of these architectures; ``why`` may name {device}."""
    return lambda device: None if device.architecture in architectures else why.format(device=device.name)


def explain_fp16(device: Device) -> str | None:
    matrix = device.architecture in WITH_MATRIX_UNITS
    return f"{device.name} has bf16, which is as fast and cannot overflow" if matrix else None


def explain_unemitted(device: Device) -> str | None:
    if target := NOT_BUILT.get(device.id):
        return f"PyTorch's ROCm wheels have no kernels for {target}, which {device.name} is"
    if device.architecture not in GFX:
        return f"nobody says that PyTorch's ROCm wheels have kernels for {device.name}"
    return None


def choose_build(role: str, device: Device, driver: str | None) -> str:
    """That of ROCm. Raises ``UsageError`` where the role has none, or none with kernels for the device."""
    name = choose_build_of("rocm", role, device.name)
    compiled = list_builds(role)[name].targets
    targets = list_targets(device)
    if compiled and not set(targets) & set(compiled):
        kind = " and ".join(targets) or f"architecture {device.architecture}"
        raise UsageError(f"the wheels of {role} ({name}) have no kernels for {kind}, which {device.name} is")
    return name


def list_targets(device: Device) -> tuple[str, ...]:
    return OF_ONE_TARGET.get(device.id) or GFX.get(device.architecture or "", ())


GROUP_FILE = "/dev/kfd"


def contain(visible: str | None, device: Device) -> Container:
    """ROCm's kernel driver and the render nodes, by the group that owns them
    (https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html); RCCL and hipMalloc map memory in ways that
    Docker's seccomp profile forbids, says the same page."""
    chosen = (f"--env HIP_VISIBLE_DEVICES={visible}",) if visible else ()
    return Container(
        flags=(
            "--device /dev/kfd --device /dev/dri",
            f'--group-add "$(stat -c %g {GROUP_FILE})" --security-opt seccomp=unconfined',
            *chosen,
        ),
        compose={
            "devices": ["/dev/kfd", "/dev/dri"],
            "group_add": [f"${{RENDER_GROUP:?the number that stat -c %g {GROUP_FILE} prints}}"],
            "security_opt": ["seccomp=unconfined"],
        },
        compose_environment=(f"HIP_VISIBLE_DEVICES={visible}",) if visible else (),
    )


VENDORS = (
    Vendor(
        name="amd",
        devices=(("amd", "gpu"),),
        title="AMD GPU",
        torch_device="cuda",
        guard="rocm",
        backend="nccl",
        collectives="RCCL",
        visible_devices="HIP_VISIBLE_DEVICES",
        choose_build=choose_build,
        list_targets=list_targets,
        abilities={
            "bf16": on(WITH_MATRIX_UNITS, "{device} has no bf16 products: they begin with CDNA and RDNA 3"),
            "fp16": explain_fp16,
            "tf32": lambda device: "TrainingArguments refuses tf32 on builds of ROCm",
            "fp8": explain_float8,
            "flash": on(
                INSTINCT,
                "PyTorch's flash kernels are stable on Instinct MI200 and later, and experimental on {device}",
            ),
            "flash-check": lambda device: "which kernel ROCm's attention takes was not asked for there",
            "hub-flash": lambda device: "aiter's FlashAttention comes by the kernels hub, which is off in this stack",
            "varlen": lambda device: "PyTorch's flash kernel of rows was checked for CUDA alone",
            "compile": on(COMPILED, "torch.compile is for Instinct MI200, RDNA 3 and later, not {device}"),
            "compiled-decode": on(COMPILED, "torch.compile is for Instinct MI200, RDNA 3 and later, not {device}"),
            "triton": has,
            "liger": on(COMPILED, "Liger's kernels need Triton, which is for Instinct MI200, RDNA 3 and later"),
            "torch.cuda": has,
            "fsdp": has,
            "pinned-memory": has,
            "numa-binding": has,
            "growing-segments": lambda device: "segments that grow were not tried on ROCm",
            "nvcc": lambda device: (
                "DeepSpeed compiles its reader of disks with nvcc, or with hipcc, which was not tried"
            ),
        },
        kubernetes="amd.com/gpu",
        group_file=GROUP_FILE,
        contain=contain,
        share_memory=share_memory,
        more_memory="the kernel's parameter ttm.pages_limit raises it, in pages of 4 KiB",
        explain_unemitted=explain_unemitted,
    ),
)
