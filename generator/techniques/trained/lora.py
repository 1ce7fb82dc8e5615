from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, make_argument, merge_edits
from generator.techniques.launch import is_by_loop
from generator.techniques.router_loss import make_router_edits

WIDEN_HEAD = """\
for weight in model.parameters():  # PEFT makes its adapters float32, and leaves the head that it trains in 16 bits
    if weight.requires_grad:
        weight.data = weight.data.float()"""
"""A head in bf16 would lose small updates, and fp16's scaler refuses the gradients of one in fp16."""

UNADAPTED = {
    "falcon_h1": ("out_proj",),
    "falcon_mamba": ("dt_proj", "out_proj"),
    "jamba": ("dt_proj",),
    "mamba": ("dt_proj", "out_proj"),
    "mamba2": ("out_proj",),
    "nemotron_h": ("out_proj",),
}
"""Linear layers of a state-space block whose weight its scan reads by itself, by model type: PEFT 0.21 raises for ``out_proj``
(tuners_utils.py: _check_lora_target_modules_mamba), and an adapter of ``dt_proj`` has no gradient (modeling_mamba.py, modeling_jamba.py)."""


class Lora(Technique):
    """Freeze the model and train low-rank adapters on its linear layers.

    What it does: gradients and optimizer states shrink to the adapters'; the frozen weights stay in 16 bits.
    When it loses: in what it learns: less new knowledge than full training.
    Known problems: the result is an adapter beside the base model; rank and alpha are yours (config.yaml).
    """

    axis = "trained"
    name = "lora"
    evidence = (
        Published("https://arxiv.org/abs/2106.09685", "GPT-3 175B: 1.2 TB of VRAM becomes 350 GB, quality on par"),
    )

    def obstacle(self, case: Case) -> str | None:
        return None if case.workload.train == "lora" else f"you asked for --train {case.workload.train}"

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {
            "train": "lora",
            "lora_rank": case.workload.lora_rank,
            "lora_targets": "all-linear",
            "lora_dropout": case.workload.lora_dropout,
        }

    def edits(self, case: Case) -> Edits:
        edits = make_adapter_edits(case)
        if case.workload.task != "text-classification":
            return edits
        return replace(edits, after_model=(*edits.after_model, WIDEN_HEAD))


def make_adapter_edits(case: Case) -> Edits:
    """The adapter, where the trainer of the task takes it, and what a mixture learns besides."""
    return merge_edits([("adapters", place_adapter(case)), ("router loss", make_router_edits(case))])


def place_adapter(case: Case) -> Edits:
    peft_task = "SEQ_CLS" if case.workload.task == "text-classification" else "CAUSAL_LM"
    left = UNADAPTED.get(case.model.model_type)
    exclude = f", exclude_modules={list(left)}" if left else ""
    adapter = f'adapter = LoraConfig(task_type="{peft_task}", target_modules="all-linear"{exclude}, **CONFIG["lora"])'
    if is_by_loop(case.layout):  # as soon as the model is read: then it is divided
        return Edits(
            imports=("from peft import LoraConfig, get_peft_model",),
            setup=(adapter,),
            model_arguments=(make_argument("adapt", Code("partial(get_peft_model, peft_config=adapter)")),),
            requirements=("peft",),
        )
    if case.workload.task == "sft":  # SFTTrainer wraps the model itself, and prepares a quantized one
        return Edits(
            imports=("from peft import LoraConfig",),
            setup=(adapter,),
            trainer_arguments=(make_argument("peft_config", Code("adapter")),),
            requirements=("peft",),
        )
    return Edits(
        imports=("from peft import LoraConfig, get_peft_model",),
        setup=(adapter,),
        after_model=("model = get_peft_model(model, adapter)",),
        requirements=("peft",),
    )
