"""What a script compiles while it runs, and with which compilers: for the image, the README and the check at the start."""

from __future__ import annotations

from generator.decide.plan import Plan
from generator.emit.plan_document import CompilerRecord
from generator.techniques.base import Technique

NVCC = "nvcc"
"""CUDA's compiler, which a leaf of its own looks for"""
DEBIAN_PACKAGES = {"gcc": ("gcc", "libc6-dev"), "g++": ("g++",), NVCC: ("libaio-dev",)}
"""By command. Without its recommendations gcc has no headers of the C library; g++ depends on both. CUDA's toolkit comes with
the base image (``toolkit_image`` of stacks.toml)."""
PYTHON_PACKAGES = ("python3", "python3-dev", "python3-venv")
"""of an image that is not Python's own, which has the interpreter's headers"""


def list_compilers(plan: Plan) -> CompilerRecord:
    serving = plan.serving or (plan if plan.case.workload.mode == "infer" else None)
    return CompilerRecord(
        train=list_training_compilers(plan) if plan.case.workload.mode == "train" else (),
        infer=list_technique_compilers(plan, serving.best.members) if serving else (),
    )


def list_training_compilers(plan: Plan) -> tuple[str, ...]:
    """TRL's SFTTrainer computes its loss with Triton on every CUDA device (trl/trainer/utils.py, _ChunkedLogProbFunction)."""
    needed = set(list_technique_compilers(plan, plan.best.members))
    if plan.case.explain_missing("triton") is None and plan.case.workload.task == "sft":
        needed.add(plan.case.vendor.triton_compiler)
    if builds_deepspeed_ops(plan):
        needed |= {"g++", NVCC}
    return tuple(sorted(needed))


def list_technique_compilers(plan: Plan, members: tuple[Technique, ...]) -> tuple[str, ...]:
    """Inductor writes C++ for what stays on the CPU; on a GPU Triton builds its launcher with a C compiler
    (triton/runtime/build.py)."""
    if not any(technique.compiles for technique in members):
        return ()
    triton = () if plan.case.explain_missing("triton") else (plan.case.vendor.triton_compiler,)
    return tuple(sorted({"g++", *triton}))


def builds_deepspeed_ops(plan: Plan) -> bool:
    """Whether DeepSpeed compiles at its first use: its NVMe reader, or an AdamW of its own for what is offloaded.

    With a GPU in sight each asks nvcc for its version (deepspeed/ops/op_builder/builder.py, installed_cuda_version).
    """
    settings = dict(plan.edits.deepspeed)
    to_host = any(key.startswith("zero_optimization.offload_optimizer") for key in settings)
    return reads_nvme(plan) or (to_host and settings.get("zero_force_ds_cpu_optimizer", True))


def reads_nvme(plan: Plan) -> bool:
    return any(value == "nvme" for _, value in plan.edits.deepspeed)


def list_image_packages(compilers: CompilerRecord) -> tuple[str, ...]:
    """What apt-get must add to the base image. Python's own image has the interpreter's headers."""
    python = PYTHON_PACKAGES if NVCC in compilers.train else ()
    return tuple(sorted({*list_compiler_packages(compilers), *python}))


def list_debian_packages(compilers: CompilerRecord) -> tuple[str, ...]:
    """What a Debian lacks, whose Python is its own."""
    packages = list_compiler_packages(compilers)
    return tuple(sorted({*packages, "python3-dev"})) if packages else ()


def list_compiler_packages(compilers: CompilerRecord) -> set[str]:
    needed = {*compilers.train, *compilers.infer}
    if "g++" in needed:
        needed.discard("gcc")  # it depends on it
    return {package for command in needed for package in DEBIAN_PACKAGES[command]}
