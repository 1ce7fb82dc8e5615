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

STATES = {"": "model_states/plain", "DeepSpeedEngine": "model_states/deepspeed"}
"""The leaf that lists weights, gradients and optimizer states, by the class that holds them."""


def choose_modules(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> dict[str, str]:
    """Module name to leaf, without ``.py``. ``parallel`` is what plan.json says of several processes."""
    modules = {"machine": f"machine/{project.device}", "infer_report": "infer_report"}
    if project.mode != "train":
        return modules
    modules |= {name: name for name in ("checkpoints", "stopping", "run_report", "first_step", *edits.fragments)}
    if project.data_format != "hub":
        modules["rows"] = f"rows/{project.data_format}"
    if project.train_tokenizer:
        modules["tokenizer"] = "tokenizer"
    modules["model_states"] = STATES.get(parallel.expected.wrapper, STATES[""]) if parallel else STATES[""]
    if parallel is not None:
        modules |= {"parallel": "parallel", "wrapping": WRAPPINGS[parallel.expected.wrapper]}
    return dict(sorted(modules.items()))
