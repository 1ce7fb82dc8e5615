"""Huawei's Ascend NPUs: "npu", by torch-npu, which takes the CPU build of the same torch and loads Huawei's CANN toolkit with it."""

from __future__ import annotations

from generator.case.stacks import choose_build_of
from generator.case.vendors.vendor import Rule, Toolkit, Vendor, has
from hwdetect.types import Device

TRAINS = ("ascend-910b", "ascend-910c")
"""how the ids of what a training was published for begin: Atlas A2 and A3 (https://github.com/Ascend/pytorch, README of 2.13.0)"""
INFERS = ("ascend-310",)
OF_2019 = "ascend-910"


REACHED = {32 << 30: 0.921, 64 << 30: 0.952}
"""By the memory that npu-smi shows of a board, the share of it that torch-npu reports: 29.50 GiB of a 910B4's 32 (the "total capacity" of
its errors), and of 64 GiB 62,432 MiB on a 910B2C (what `get_device_properties` prints) and 60.96 to 61.27 GiB on others
(https://github.com/vllm-project/vllm-ascend/issues/1127, https://github.com/sgl-project/sglang/issues/29838). A 310P3 reports what
npu-smi shows."""


def reach_memory(device: Device, memory_bytes: int) -> int:
    return round(memory_bytes * REACHED.get(memory_bytes, 1.0)) if device.id.startswith(TRAINS) else memory_bytes


def with_bf16(device: Device) -> bool:
    return "bf16" in dict(device.peak_flops)


def explain_bf16(device: Device) -> str | None:
    return None if with_bf16(device) else f"{device.name} has no bf16 products: they begin with the 910B"


def explain_fp16(device: Device) -> str | None:
    return f"{device.name} has bf16, which is as fast and cannot overflow" if with_bf16(device) else None


def explain_unemitted(device: Device) -> str | None:
    if device.id.startswith(TRAINS):
        return None
    if device.id == OF_2019:
        return f"torch-npu 2.13 is published for Atlas A2 and A3 (910B1 to 910B4, 910C), and {device.name} is the 910 of 2019"
    if not device.id.startswith(INFERS):
        return (
            f"torch-npu 2.13 is published for Atlas A2 and A3 (910B1 to 910B4, 910C), and {device.name} is none that is known here: what "
            "npu-smi calls 910A or 910B, without a number, is the 910 of 2019"
        )
    return (
        f"{device.name} is made for inference, which Huawei's MindIE and vLLM Ascend run there: nobody says that Trainer's or "
        "generate's operators of PyTorch run on it"
    )


def was_not_run(what: str) -> Rule:
    return lambda device: f"{what} was not run on Ascend"


VENDORS = (
    Vendor(
        name="huawei",
        devices=(("huawei", "accelerator"), ("huawei", "gpu")),
        title="Ascend NPU",
        torch_device="npu",
        guard="npu",
        backend="hccl",
        collectives="HCCL",
        visible_devices="ASCEND_RT_VISIBLE_DEVICES",
        choose_build=lambda role, device, driver: choose_build_of("npu", role, device.name),
        abilities={
            "bf16": explain_bf16,
            "fp16": explain_fp16,
            "tf32": lambda device: "TrainingArguments takes tf32 on CUDA builds alone",
            "fp8": lambda device: f"{device.name} multiplies no 8-bit floating point",
            "flash": lambda device: (
                "which kernel Ascend's attention takes was not seen: the scores are counted as held"
            ),
            "hub-flash": lambda device: "the kernels hub is off in this stack",
            "varlen": lambda device: "PyTorch's flash kernel of rows was checked for CUDA alone",
            "compile": was_not_run("torch.compile, which goes by a compiler of torch-npu's own,"),
            "compiled-decode": was_not_run("the compiled decoding step"),
            "triton": lambda device: "Triton's kernels need triton-ascend, which the registry of this stack has not",
            "liger": lambda device: "Liger's kernels need triton-ascend, which the registry of this stack has not",
            "growing-segments": was_not_run("an allocator whose segments grow (PYTORCH_NPU_ALLOC_CONF)"),
            "fsdp": has,
            "pinned-memory": has,
        },
        missing={
            "bitsandbytes": "bitsandbytes has no kernels for it",
            "deepspeed": "DeepSpeed was not looked at there",
            "liger-kernel": "Liger's kernels need triton-ascend, which the registry of this stack has not",
            "torchao": "torchao's optimizers compile their step, and torch.compile was not run on Ascend",
        },
        toolkit=Toolkit(
            title="CANN 9.1",
            variable="ASCEND_HOME_PATH",
            set_by=". /usr/local/Ascend/ascend-toolkit/set_env.sh",
            image="quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11 (a3 in the place of 910b for a 910C)",
        ),
        reach_memory=reach_memory,
        # a container would need the host's driver, mounted; inside of CANN's image the project runs as on a machine
        contain=None,
        explain_unemitted=explain_unemitted,
    ),
)
