from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import STRATEGIES
from generator.model.classifiers import READS_END
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, make_argument, merge_edits
from generator.techniques.launch import is_by_loop
from generator.techniques.router_loss import make_router_edits
from generator.techniques.unpacking import make_unpacking_edits

WIDEN_HEAD = """\
for weight in model.parameters():  # PEFT makes its adapters float32, and leaves the head that it trains in 16 bits
    if weight.requires_grad:
        weight.data = weight.data.float()"""
"""A head in bf16 would lose small updates, and fp16's scaler refuses the gradients of one in fp16."""

INDEXER = ("indexer.weights_proj", "indexer.wk", "indexer.wq_b")
UNADAPTED = {
    "axk2": INDEXER,
    "deepseek_v32": INDEXER,
    "deepseek_v4": ("o_a_proj", "indexer.gate_proj", "indexer.kv_proj", "indexer.q_b_proj", "scorer.weights_proj"),
    "dots3_note": INDEXER,
    "dots3_note_text": INDEXER,
    "falcon_h1": ("out_proj",),
    "falcon_mamba": ("dt_proj", "out_proj"),
    "gemma3n": ("correction_coefs",),
    "gemma3n_text": ("correction_coefs",),
    "glm_moe_dsa": INDEXER,
    "hy_v4": INDEXER,
    "jamba": ("dt_proj",),
    "llama4": ("router",),
    "llama4_text": ("router",),
    "mamba": ("dt_proj", "out_proj"),
    "mamba2": ("out_proj",),
    "nemotron_h": ("out_proj",),
    "phimoe": ("router",),
}
"""Linear layers that are no plain product of their input, by model type. Of a state-space block the scan reads the weight by itself:
PEFT 0.21 raises for ``out_proj`` (tuners_utils.py: _check_lora_target_modules_mamba), and an adapter of ``dt_proj`` has no gradient
(modeling_mamba.py, modeling_jamba.py). An indexer of sparse attention chooses keys without gradients, a router that is a Linear
returns several tensors, ``o_a_proj`` has a weight for each group of heads, ``correction_coefs`` are read clamped (Transformers 5.23)."""

POOLED = ("pooler.dense",)
AT_THE_END = ("classification_head",)
HEADS = {
    **dict.fromkeys(READS_END, AT_THE_END),
    "albert": ("pooler",),
    "bert": POOLED,
    "deberta": POOLED,
    "deberta-v2": POOLED,
    "distilbert": ("pre_classifier",),
    "ernie": POOLED,
    "eurobert": ("dense",),
    "flaubert": ("sequence_summary",),
    "gte": POOLED,
    "megatron-bert": POOLED,
    "modernbert": ("head",),
    "modernbert-decoder": ("head",),
    "modernvbert": ("head",),
    "nomic_bert": POOLED,
    "rembert": POOLED,
    "roc_bert": POOLED,
    "ultravbert": ("head",),
    "xlm": ("sequence_summary",),
    "xlnet": ("sequence_summary", "logits_proj"),
}
"""What stands between the model and the labels and is new with them, where PEFT does not know it by its name (it does ``classifier`` and
``score``): an adapter beside random weights that nobody saves gives other answers each time it is loaded."""


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
        if not case.workload.task_facts.classifies:
            return edits
        return replace(edits, after_model=(*edits.after_model, WIDEN_HEAD))


def make_adapter_edits(case: Case) -> Edits:
    """The adapter, where the trainer of the task takes it, and what a mixture learns besides."""
    parts = {
        "unpacking": make_unpacking_edits(case),
        "untrained tokens": name_untrained_tokens(case),
        "adapters": place_adapter(case),
        "router loss": make_router_edits(case),
    }
    return merge_edits(list(parts.items()))


def name_untrained_tokens(case: Case) -> Edits:
    """At the start, with what trains them too: tokens of the data whose embeddings adapters would leave as nobody trained them."""
    beside = list_trained_beside(case.layout)
    names, more = ["warn_of_untrained"], ""
    written = str(beside).replace("'", '"')  # as ruff formats it
    if beside != BESIDE:
        names, more = [*names, "refuse_beside"], f", {written}"
    refusal = f'refuse_beside(CONFIG["lora"], {written})'
    warning = f"warn_of_untrained(model, source, CONFIG, tokenizer, train_dataset{more})"
    by_trl = case.workload.task == "sft" and not is_by_loop(case.layout)
    names += ["complete_head"] if by_trl else []
    return Edits(
        imports=(f"from untrained_tokens import {', '.join(sorted(names))}",),
        fragments=("untrained_tokens",),
        setup=(refusal,) if "refuse_beside" in names else (),
        after_model=(warning,),
        after_trainer=("complete_head(trainer.model)",) if by_trl else (),
    )


BESIDE = ("trainable_token_indices", "modules_to_save")
"""What PEFT trains of embeddings beside adapters: rows, or whole layers."""


def list_trained_beside(layout: Layout) -> tuple[str, ...]:
    """Of ``BESIDE`` what works: rows nowhere in DTensors or parts of DeepSpeed's, whole layers where they are copied before they are
    divided, or DeepSpeed gathers them (peft 0.21; FINDINGS.md, 2026-11-29)."""
    row = STRATEGIES[layout.strategy]
    if is_by_loop(layout):
        return () if row.divides_states or layout.tp > 1 else BESIDE
    return ("modules_to_save",) if row.divides_weights else BESIDE


def place_adapter(case: Case) -> Edits:
    classifies = case.workload.task_facts.classifies
    peft_task = "SEQ_CLS" if classifies else "CAUSAL_LM"
    whole = list_head(case) if classifies else ()
    head = f", modules_to_save={list(whole)}" if whole else ""
    left = UNADAPTED.get(case.model.model_type)
    exclude = f", exclude_modules={list(left)}" if left else ""
    adapter = (
        f'adapter = LoraConfig(task_type="{peft_task}", target_modules="all-linear"{exclude}{head}, **CONFIG["lora"])'
    )
    if is_by_loop(case.layout) and case.layout.tp > 1 and case.layout.pp > 1:  # each process divides its stage alone
        return Edits(
            imports=("from peft import LoraConfig, get_peft_model", "from adapter_parts import divide_beneath"),
            setup=(adapter,),
            model_arguments=(
                make_argument("adapt", Code("partial(get_peft_model, peft_config=adapter)")),
                make_argument("beneath", Code("divide_beneath")),
            ),
            fragments=("adapter_parts",),
            requirements=("peft",),
        )
    if is_by_loop(case.layout) and case.layout.tp > 1:
        return Edits(
            imports=("from peft import LoraConfig", "from adapter_parts import adapt_parts"),
            setup=(adapter,),
            model_arguments=(make_argument("adapt", Code("partial(adapt_parts, peft_config=adapter)")),),
            fragments=("adapter_parts",),
            requirements=("peft",),
        )
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


def list_head(case: Case) -> tuple[str, ...]:
    """The modules of a classifier that are learned whole, beside those that PEFT knows."""
    return HEADS.get(case.model.model_type, ())
