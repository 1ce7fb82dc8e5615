from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.case.strategies import STRATEGIES
from generator.model.block_traits import groups_experts
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, make_argument, merge_edits
from generator.techniques.launch import is_by_deepspeed, is_by_loop
from generator.techniques.precision.fp32 import make_weights_edits, state_mixed_precision
from generator.techniques.precision.tf32 import explain_missing_tf32
from generator.techniques.traits import Trait
from hwdetect.catalog.cpu import get_share_without_bf16, has_bf16

DROP_CASTS = """\
# autocast's cache would keep a 16-bit copy of every weight until the forward pass ends
trainer.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)"""


class Bf16(Technique):
    """Compute in bfloat16 under autocast; trained weights stay in 32 bits.

    What it does: matrix products in 16 bits with the range of fp32, so no loss scaling; frozen and served weights are
    stored in bf16 too.
    When it loses: on hardware that only emulates it: V100, T4 and plain AVX-512 CPUs, where it is slower than fp32.
    Known problems: PyTorch's own `is_bf16_supported` counts emulation; autocast's cache would keep a 16-bit copy of every
    weight until the pass ends, so that a large model with a small batch took more memory than in fp32: it is off.
    """

    axis = "precision"
    name = "bf16"
    modes = ("train", "infer")
    provides = frozenset({Trait.BFLOAT16_ARITHMETIC})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/mixed_precision_training",
            "bf16 needs no loss scaling; Ampere and later",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_missing_bf16(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        sums = {"sums_dtype": "float32"} if is_summed_in_fp32(case) else {}
        return {**describe_autocast(case, "bfloat16"), **sums}

    def edits(self, case: Case) -> Edits:
        edits = make_autocast_edits(case, "bfloat16", "bf16")
        return (
            replace(edits, deepspeed=(("data_types.grad_accum_dtype", "fp32"),)) if is_summed_in_fp32(case) else edits
        )


def is_summed_in_fp32(case: Case) -> bool:
    """DeepSpeed would sum bf16 gradients in bf16: another result than one device gives."""
    return case.workload.mode == "train" and is_by_deepspeed(case.layout)


def explain_missing_bf16(case: Case) -> str | None:
    """Why bf16 is not worth asking for: no bf16 arithmetic in the hardware (never PyTorch's own answer, which counts emulation)."""
    if case.portable:
        return "the machine is not known, and bf16 is slow where it is only emulated"
    if case.on_cpu:
        cpu = case.hardware.cpu
        if has_bf16(cpu):
            return None
        times = round(1 / get_share_without_bf16(cpu))
        return f"this CPU has no bf16 instructions (avx512_bf16, amx_bf16): emulation takes {times}x the time of fp32"
    if why := case.explain_missing("bf16"):
        return why
    if case.device.flops("bf16") is None:
        return f"the catalogue knows no bf16 rate of {case.device.name}"
    return None


def describe_autocast(case: Case, dtype: str) -> dict[str, object]:
    """Trained weights in 32 bits under autocast; frozen or served ones in 16."""
    if case.workload.mode == "infer":
        return {"weights_dtype": dtype}
    stored = "float32" if case.workload.train == "full" else dtype
    described: dict[str, object] = {
        "weights_dtype": stored,
        "autocast_dtype": dtype,
        "tf32": explain_missing_tf32(case) is None,
        "autocast_cache": not drops_casts(case),
    }
    return described | ({"lora_casts": False} if reads_inputs_uncast(case) or case.workload.train == "qlora" else {})


def drops_casts(case: Case) -> bool:
    """Whether the 16-bit copy of a trained weight goes with the product that read it. A weight is read once in a pass, so that
    autocast's cache of them saves no work, but for losses that go through the output layer chunk by chunk."""
    casts = case.workload.train == "full" and not STRATEGIES[case.layout.strategy].casts_itself
    return casts and case.skeleton is None


def reads_inputs_uncast(case: Case) -> bool:
    """Adapters beside 16-bit weights need no float32 copy of their input; bitsandbytes' layers make none under autocast. DoRA adds
    its update to a copy of the weight in the input's dtype, which must be float32."""
    return case.workload.train == "lora" and case.workload.adapter != "dora"


def share_adapter_inputs(case: Case) -> Edits:
    if not reads_inputs_uncast(case):
        return Edits()
    imports, fragments = ("from adapter_inputs import share_inputs",), ("adapter_inputs",)
    if case.workload.task == "sft":
        return Edits(imports=imports, fragments=fragments, after_trainer=("share_inputs(trainer.model)",))
    return Edits(imports=imports, fragments=fragments, after_model=("share_inputs(model)",))


def cast_expert_products(case: Case) -> Edits:
    """Autocast casts the products of linear layers, and of grouped experts none (torch 2.13)."""
    if not groups_experts(case.model) or not drops_casts(case):
        return Edits()
    return Edits(
        imports=("from expert_products import cast_experts",),
        fragments=("expert_products",),
        setup=("cast_experts()  # autocast casts linear layers, and of grouped experts nothing",),
    )


def make_autocast_edits(case: Case, dtype: str, flag: str) -> Edits:
    full = case.workload.train == "full"
    kept = full and not is_by_deepspeed(case.layout)
    arguments = [make_argument(flag, True, f"compute in {flag}" + (", keep weights in fp32" if kept else ""))]
    if explain_missing_tf32(case) is None:
        arguments.append(make_argument("tf32", True, "what stays in fp32 uses TF32 products"))
    if case.workload.mode == "infer":
        return make_weights_edits(dtype)
    if not full:
        frozen = make_weights_edits(
            dtype,
            "frozen weights in 16 bits",
            training_arguments=tuple(arguments),
            accelerate=state_mixed_precision(case, flag),
        )
        return merge_edits([(flag, frozen), (flag, share_adapter_inputs(case))])
    if is_by_deepspeed(case.layout):
        return make_weights_edits(dtype, "DeepSpeed keeps an fp32 master copy", training_arguments=tuple(arguments))
    stored = (
        make_argument("dtype", Code("torch.float32"), f"trained weights stay in fp32, {flag} is for the arithmetic"),
    )
    served = (make_argument("dtype", Code(f"torch.{dtype}")),)
    uncached = drops_casts(case) and not is_by_loop(case.layout)  # loop.py has its own autocast
    edits = Edits(
        imports=("import torch", *(("from accelerate.utils import AutocastKwargs",) if uncached else ())),
        after_trainer=(DROP_CASTS,) if uncached else (),
        infer_imports=("import torch",),
        model_arguments=stored,
        infer_model_arguments=served,
        training_arguments=tuple(arguments),
        accelerate=state_mixed_precision(case, flag),
    )
    return merge_edits([(flag, edits), (flag, cast_expert_products(case))])
