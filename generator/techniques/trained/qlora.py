from dataclasses import replace

from generator.techniques.base import Published, Technique
from generator.techniques.edits import Argument, Code, argument
from generator.techniques.precision.bf16 import lacks_bf16
from generator.techniques.precision.fp16 import lacks_fp16
from generator.techniques.trained.lora import adapter_edits


class QLora(Technique):
    """Freeze the model in 4 bits (NF4, double quantization) and train low-rank adapters on it.

    A quarter of the weights' memory; every use dequantizes a layer first, so a step is slower than with 16-bit weights
    that fit. The rounded base is part of the result: evaluate with it, and merge with care.
    """

    axis = "trained"
    name = "qlora"
    evidence = (
        Published("https://arxiv.org/abs/2305.14314", "65B on one 48 GB GPU with the quality of 16-bit fine-tuning"),
    )

    def obstacle(self, case):
        if case.workload.train != "qlora":
            return f"you asked for --train {case.workload.train}"
        return case.stack.why_missing("bitsandbytes")

    def effects(self, case):
        rank = case.workload.lora_rank
        return {"train": "lora", "lora_rank": rank, "lora_targets": "all-linear", "quant": "nf4", "lora_upcast": True}

    def edits(self, case):
        prepare = "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)"
        base = adapter_edits(case, before=(prepare,))
        extra = () if case.workload.task == "sft" else ("from peft import prepare_model_for_kbit_training",)
        return replace(
            base,
            imports=(*base.imports, *extra, "import torch", "from transformers import BitsAndBytesConfig"),
            setup=(nf4_config(case), *base.setup),
            model_arguments=(
                argument("quantization_config", Code("quantization"), "base weights in 4 bits"),
                *own_device(case),
            ),
            requirements=(*base.requirements, "bitsandbytes"),
        )


def own_device(case) -> tuple[Argument, ...]:
    """Quantized weights cannot be moved once they are loaded: each process loads them where it will train."""
    if case.layout.devices == 1:
        return ()
    return (argument("device_map", Code('{"": args.local_process_index}'), "each process on its own GPU"),)


def nf4_config(case) -> str:
    """The statement that names the 4-bit format; training and serving must use the same."""
    return (
        "quantization = BitsAndBytesConfig(\n"
        "    load_in_4bit=True,\n"
        '    bnb_4bit_quant_type="nf4",\n'
        "    bnb_4bit_use_double_quant=True,\n"
        f"    bnb_4bit_compute_dtype=torch.{dequantized_dtype(case)},\n"
        ")"
    )


def dequantized_dtype(case) -> str:
    """What a dequantized layer computes in: the best 16-bit format of the device, float32 on a plain CPU."""
    if lacks_bf16(case) is None:
        return "bfloat16"
    return "float32" if lacks_fp16(case) else "float16"
