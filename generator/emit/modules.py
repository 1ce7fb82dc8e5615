"""Which plain Python files a project takes: its modules, by the leaf of templates/fragments that each is copied from."""

from __future__ import annotations

from generator.emit.plan_document import ParallelRecord, ProjectPart
from generator.techniques.edits import Edits

WRAPPINGS = {
    "DistributedDataParallel": "wrapping/ddp",
    "FSDPModule": "wrapping/fsdp",
    "DeepSpeedEngine": "wrapping/deepspeed",
}
"""The leaf that looks at a model, by the class that wraps it."""

WITH_ALL_WEIGHTS = ("DistributedDataParallel",)
"""Wrappers under which one process alone can answer a prompt while the others wait."""


def choose_modules(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> dict[str, str]:
    """Module name to leaf, without ``.py``. ``parallel`` is what plan.json says of several processes."""
    modules = {"machine": f"machine/{project.device}", "infer_report": "infer_report"}
    if project.mode != "train":
        return modules
    always = ("arguments", "checkpoints", "evaluation", "model_card", "progress", "run_report", "stopping")
    modules |= {name: name for name in (*always, *edits.fragments)}
    if project.task == "text-classification":
        modules["class_metrics"] = "class_metrics"
    if project.adapter:
        modules["merge"] = "merge"
    if project.task == "sft" and (parallel is None or parallel.expected.wrapper in WITH_ALL_WEIGHTS):
        modules["answers"] = "answers"
    if project.data_format != "hub":
        modules["rows"] = f"rows/{project.data_format}"
    if project.train_tokenizer:
        modules["tokenizer"] = "tokenizer"
    if parallel is not None:
        modules |= {"parallel": "parallel", "wrapping": WRAPPINGS[parallel.expected.wrapper]}
    return dict(sorted(modules.items()))
