"""The loss that balances the experts of a mixture: which trainings add it, and what adds it.

Without it tokens crowd into few experts, which learn faster than the others and are chosen the more (Switch Transformers,
https://arxiv.org/abs/2101.03961, 2.2; ST-MoE, https://arxiv.org/abs/2202.08906, keeps it for fine-tuning). Models whose
routers have it carry its weight in their config (``router_aux_loss_coef``), and Transformers leaves it out all the same, as
``output_router_logits`` is off in their config.json. Where it is on, Trainer adds it up over the micro-batches of a step and
its processes (``compute_loss`` of trainer.py multiplies the whole loss by the processes); TRL's SFTTrainer has it on and
means it. DeepSeek-V3 and others balance by a bias of their routers instead, and have none.
"""

from __future__ import annotations

from generator.case.case import Case
from generator.model.routers import WITH_LOSS
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.launch import is_by_loop

WEIGHED = WITH_LOSS | {"doge", "llama4", "llama4_text", "qwen3_5_moe", "qwen4_exp", "qwen4_exp_text"}
"""Types whose config has a weight of it, mixture or not. SFTTrainer goes by the config alone: of a model that is no mixture (Granite 4
and Jamba come dense too), or that has no such loss, it asks for the logits of routers, which raises or is multiplied by nothing."""


def has_router_loss(case: Case) -> bool:
    """Whether what is trained can add it: a classifier's forward has none."""
    return case.workload.mode == "train" and case.workload.task in ("causal-lm", "sft") and case.model.router_loss


def explain_missing_router_loss(case: Case) -> str | None:
    """Why a mixture that has such a loss is trained without it, or ``None``."""
    divides = is_by_loop(case.layout) and (
        case.layout.pp > 1 or case.layout.cp > 1
    )  # no process has all layers, or all tokens
    if not has_router_loss(case) or (case.skeleton is None and not divides):
        return None
    return "no loss balances its experts: this project's loop leaves out what router_aux_loss_coef of the model's config weighs"


def make_router_edits(case: Case) -> Edits:
    """What trains with it, by Trainer and by SFTTrainer."""
    sft = case.workload.task == "sft" and not is_by_loop(case.layout)  # loop.py adds it in one way for both
    if not has_router_loss(case):
        unweighed = sft and case.model.model_type in WEIGHED
        return Edits(training_arguments=(make_argument("router_aux_loss_coef", 0.0),) if unweighed else ())
    if explain_missing_router_loss(case):
        return Edits()
    own = 'None if CONFIG["router_loss"] is None else float(CONFIG["router_loss"])'  # its config refuses a whole number
    weight = make_argument("router_aux_loss_coef", Code(own), "balances the experts")
    return Edits(
        imports=("from router_loss import add_router_loss",),
        fragments=("router_loss",),
        training_arguments=(weight,) if sft else (),
        after_trainer=("add_router_loss(trainer)" if sft else 'add_router_loss(trainer, CONFIG["router_loss"])',),
    )
