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


def choose_modules(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> dict[str, str]:
    """Module name to leaf, without ``.py``. ``parallel`` is what plan.json says of several processes."""
    modules = {"machine": f"machine/{project.device}", "infer_report": "infer_report"}
    if project.sft_format == "messages" and not project.chat_template:
        modules["chat_template"] = "chat_template"
    if project.mode != "train":
        return dict(sorted(modules.items()))
    modules |= {name: name for name in ("checkpoints", "stopping", "run_report", *edits.fragments)}
    if project.data_format != "hub":
        modules["rows"] = f"rows/{project.data_format}"
    if project.train_tokenizer:
        modules["tokenizer"] = "tokenizer"
    if parallel is not None:
        modules |= {"parallel": "parallel", "wrapping": WRAPPINGS[parallel.expected.wrapper]}
    return dict(sorted(modules.items()))
