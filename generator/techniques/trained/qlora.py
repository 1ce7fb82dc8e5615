from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Argument, Code, Edits, make_argument
from generator.techniques.launch import is_by_accelerate
from generator.techniques.precision.bf16 import explain_missing_bf16
from generator.techniques.precision.fp16 import explain_missing_fp16
from generator.techniques.trained.lora import WIDEN_HEAD, list_head, make_adapter_edits
from generator.techniques.traits import Trait

RESTORE_ADAPTERS = """\
for weight in trainer.model.parameters():
    if weight.requires_grad:
        weight.data = weight.data.float()  # TRL made the adapters bf16: their updates would be rounded away"""
"""What PEFT does by itself, undone by SFTTrainer for a quantized model; fp16's scaler has no kernel for bf16 gradients."""
KEEP_GRADIENTS = """\
for layer in model.modules():
    if isinstance(layer, Linear4bit):  # evaluation packs weights for a kernel without backward
        layer.support_avx512bf16_for_cpu = False"""
"""bitsandbytes 0.50.2, nn/modules.py (``Linear4bit.forward``): in eval mode, on a CPU with AVX512-BF16, weights are packed for
``gemv_4bit``, and stay so in training; no gradient passes it, with a warning at most, and it refuses outputs that are no multiple of 32."""


class QLora(Technique):
    """Freeze the model in 4 bits (NF4, double quantization) and train low-rank adapters on it.

    What it does: the frozen weights take a quarter of their memory in 16 bits.
    When it loses: in speed against 16-bit weights that fit: every use dequantizes a layer first.
    Known problems: the rounded base is part of the result: evaluate with it, and merge with care; TRL casts the
    adapters to bf16, under fp16 too, so train.py makes them fp32 again. On a CPU with AVX512-BF16 bitsandbytes packs
    weights at the first evaluation for a kernel without a backward pass, so train.py keeps them as they are.
    """

    axis = "trained"
    name = "qlora"
    provides = frozenset({Trait.QUANTIZED_BASE})
    evidence = (
        Published("https://arxiv.org/abs/2305.14314", "65B on one 48 GB GPU with the quality of 16-bit fine-tuning"),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.train != "qlora":
            return f"you asked for --train {case.workload.train}"
        return case.stack.why_missing("bitsandbytes")

    def effects(self, case: Case) -> Mapping[str, Any]:
        adapters = {
            "train": "lora",
            "lora_rank": case.workload.lora_rank,
            "lora_targets": "all-linear",
            "lora_dropout": case.workload.lora_dropout,
        }
        return {**adapters, "quant": "nf4"}

    def edits(self, case: Case) -> Edits:
        if is_by_accelerate(case.layout):
            return make_sharded_edits(case)
        # without PEFT's prepare_model_for_kbit_training, which makes embedding and head float32: get_peft_model freezes by itself
        base = make_adapter_edits(case)
        widened = (WIDEN_HEAD,) if case.workload.task_facts.classifies else ()
        kept, imported = ((KEEP_GRADIENTS,), ("from bitsandbytes.nn import Linear4bit",)) if case.on_cpu else ((), ())
        return replace(
            base,
            after_model=(*base.after_model, *widened, *kept),
            imports=(*base.imports, *imported, "import torch", "from transformers import BitsAndBytesConfig"),
            setup=(write_nf4_config(case), *base.setup),
            model_arguments=(
                make_argument("quantization_config", Code("quantization"), "base weights in 4 bits"),
                *place_on_own_device(case),
            ),
            after_trainer=(*base.after_trainer, *((RESTORE_ADAPTERS,) if case.workload.task == "sft" else ())),
            requirements=(*base.requirements, "bitsandbytes"),
        )


def make_sharded_edits(case: Case) -> Edits:
    """4-bit weights that FSDP2 divides: 16-bit numbers to it, which it gathers as they are and casts to nothing. Each process packs
    the model and keeps its share in host memory, from where FSDP moves one block at a time to the GPU. Nothing frozen is made float32."""
    base = make_adapter_edits(case)
    place = make_argument("device_map", Code('{"": "cpu"}'), "FSDP moves each block's share to its GPU")
    return replace(
        base,
        imports=(
            *base.imports,
            "import torch",
            "from packed_on_gpu import pack_on",
            "from transformers import BitsAndBytesConfig",
        ),
        fragments=(*base.fragments, "packed_on_gpu"),
        setup=(
            "pack_on(args.device, args.process_index, args.world_size)",
            write_nf4_config(case, stored="bfloat16"),
            *base.setup,
        ),
        model_arguments=(
            make_argument("quantization_config", Code("quantization"), "base weights in 4 bits"),
            place,
        ),
        after_trainer=(*base.after_trainer, *((RESTORE_ADAPTERS,) if case.workload.task == "sft" else ())),
        requirements=(*base.requirements, "bitsandbytes"),
    )


def place_on_own_device(case: Case) -> tuple[Argument, ...]:
    """Quantized weights cannot be moved once they are loaded: each process loads them where it will train."""
    if case.layout.devices == 1 or case.on_cpu:
        return ()
    return (make_argument("device_map", Code('{"": args.local_process_index}'), "each process on its own GPU"),)


def write_nf4_config(case: Case, stored: str | None = None) -> str:
    """The statement that names the 4-bit format; training and serving must use the same. ``stored``: the dtype of the numbers
    that hold the packed values, where bytes will not do."""
    storage = f"    bnb_4bit_quant_storage=torch.{stored},  # what FSDP can divide\n" if stored else ""
    return (
        "quantization = BitsAndBytesConfig(\n"
        "    load_in_4bit=True,\n"
        '    bnb_4bit_quant_type="nf4",\n'
        "    bnb_4bit_use_double_quant=True,\n"
        f"    bnb_4bit_compute_dtype=torch.{choose_dequantized_dtype(case)},\n"
        f"{storage}{write_skipped_head(case)}"
        ")"
    )


def write_skipped_head(case: Case) -> str:
    """A classifier's head stays unpacked: its weights are new, and a product in 4 bits whose weights are no packed ones ends the first
    step. Transformers 5.23 keeps a last layer by the name of its weight, and that of models with an encoder ends in a bias
    (quantizers/base.py)."""
    whole = list_head(case)
    if not case.workload.task_facts.classifies or not (whole or case.model.kind != "decoder"):
        return ""
    names = ["classifier", *(["score"] if case.model.kind == "encoder-decoder" else []), *whole]
    return f"    llm_int8_skip_modules={names},  # the head is learned whole\n"


def choose_dequantized_dtype(case: Case) -> str:
    """What a dequantized layer computes in: the best 16-bit format of the device, float32 on a plain CPU."""
    if explain_missing_bf16(case) is None:
        return "bfloat16"
    return "float32" if explain_missing_fp16(case) else "float16"
