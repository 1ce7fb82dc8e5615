"""The plan document: everything that plan.json holds and that a template may print. Computed here, printed there."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from generator.decide.plan import Plan, Planned
from generator.decide.reasons import Decision
from generator.emit.config_yaml import build_config
from generator.emit.figures import describe_estimate, round_floats, summarize_candidate, summarize_estimate
from generator.emit.modules import choose_modules
from generator.emit.parallel import describe_processes, select_visible_devices
from generator.emit.project import describe_project, read_version
from generator.emit.provenance import trace_edits
from generator.emit.requirements import describe_image, dump_pyproject, pin_requirements, reads_nvme
from generator.techniques.edits import Argument, Edits
from hwdetect.types import Hardware

SCHEMA = 1


def build_document(planned: Planned, name: str | None = None) -> dict:
    """The content of plan.json: complete, so that rendering needs nothing else. ``name`` is the project's, if it has one."""
    return json.loads(json.dumps(collect_content(planned, name)))  # what a reader of plan.json gets: lists, no tuples


def collect_content(planned: Planned, name: str | None) -> dict:
    plan, case = planned.plan, planned.plan.case
    workload, parallel = case.workload, describe_processes(plan)
    return {
        "schema": SCHEMA,
        "perfgen": read_version(),
        "project": describe_project(planned, name),
        "case": {
            "device": round_floats(asdict(case.device) | {"sources": dict(case.device.sources)}),
            "device_memory_bytes": case.device_memory_bytes,
            "model": asdict(case.model),
            "workload": asdict(workload),
            "hardware": keep_stable(case.hardware),
        },
        "choice": plan.best.choice,
        "layout": describe_layout(plan),
        "batch": {
            "micro_batch": plan.best.execution.micro_batch,
            "accumulation": plan.best.execution.accumulation,
            "global_batch": plan.best.execution.micro_batch * plan.best.execution.accumulation * plan.best.execution.dp,
            "splits": [summarize_candidate(c) | {"fits": c.fits} for c in plan.splits],
        },
        "estimate": describe_estimate(plan.best.estimate),
        "decisions": [describe_decision(d) for d in plan.decisions],
        "runners_up": [{"choice": c.choice, "estimate": summarize_candidate(c)} for c in plan.runners_up],
        "edits": merge_edits(plan, plan.serving),
        "parallel": parallel,
        "modules": choose_modules(planned, parallel),
        "visible_devices": select_visible_devices(plan),
        "provenance": trace_edits(plan) + (trace_edits(plan.serving) if plan.serving else []),
        "yours": collect_user_values(planned),
        "serving": describe_serving(plan.serving) if plan.serving else None,
        "config": build_config(planned),
        "requirements": pin_requirements(plan),
        "versions": dict(case.stack.packages),
        "docker": describe_image(plan),
        "files": {"pyproject.toml": dump_pyproject(planned, name)},
        "untested": list_untested(plan),
        "notes": list(planned.notes)
        + list(planned.work.source.notes)
        + (list(planned.work.data.notes) if planned.work.data else []),
    }


def describe_layout(plan: Plan) -> dict:
    """How the devices are divided, and what the same techniques would cost on fewer, more, or otherwise divided ones."""
    best = plan.best.layout
    others = [asdict(c.layout) | {"devices": c.layout.devices} | summarize_candidate(c) for c in plan.layouts]
    return asdict(best) | {"devices": best.devices, "of_devices": plan.case.devices, "others": others}


VOLATILE = {
    "available_bytes",
    "swap_used_bytes",
    "free_memory_bytes",
    "free_bytes",
    "temperature_c",
    "throttle_reasons",
}
PRIVATE = {"uuid", "pci_address", "path", "visible_devices"}


def keep_stable(hardware: Hardware) -> dict:
    """What was read of the machine, less what changes from minute to minute and what names it."""
    kept = drop_private(asdict(hardware))
    return {
        key: kept[key] for key in ("cpu", "memory", "boards", "accelerators", "links", "nodes", "software", "measured")
    }


def drop_private(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: drop_private(v) for k, v in value.items() if k not in VOLATILE | PRIVATE and v is not None}
    if isinstance(value, (list, tuple)):
        return [drop_private(v) for v in value]
    return value


def describe_decision(found: Decision) -> dict:
    return {
        "axis": found.axis,
        "chosen": found.chosen,
        "why": found.why,
        "quality_note": found.quality_note,
        "evidence": [asdict(e) for e in found.evidence],
        "basis": found.basis,
        "rejected": [
            {
                "name": r.name,
                "why": r.why,
                "cost": None if r.cost is None else {"fits": r.fits} | summarize_estimate(r.cost),
            }
            for r in found.rejected
        ],
    }


INFER_PLACES = tuple(f.name for f in fields(Edits) if f.name.startswith("infer_"))


def merge_edits(plan: Plan, serving_plan: Plan | None) -> dict:
    """The merged edits; a training plan takes its infer places from the serving plan."""
    merged = {f.name: [make_plain(item) for item in getattr(plan.edits, f.name)] for f in fields(Edits)}
    if serving_plan is not None:
        for place in INFER_PLACES:
            merged[place] = [make_plain(item) for item in getattr(serving_plan.edits, place)]
    return merged


def make_plain(item: object) -> object:
    return asdict(item) if isinstance(item, Argument) else list(item) if isinstance(item, tuple) else item


def collect_user_values(planned: Planned) -> dict:
    """The user's values: never changed to gain speed."""
    workload = planned.plan.case.workload
    names = (
        "mode",
        "task",
        "train",
        "seq_len",
        "global_batch",
        "learning_rate",
        "epochs",
        "max_steps",
        "warmup",
        "seed",
        "weight_decay",
    )
    found = {name: getattr(workload, name) for name in names}
    if workload.train != "full":
        found |= {"lora_rank": workload.lora_rank, "lora_alpha": workload.lora_alpha}
    return found


def describe_serving(plan: Plan) -> dict:
    return {
        "choice": plan.best.choice,
        "estimate": describe_estimate(plan.best.estimate),
        "decisions": [describe_decision(d) for d in plan.decisions],
    }


def list_untested(plan: Plan) -> list[str]:
    """What nobody has run: the reader must know."""
    case = plan.case
    found = (
        []
        if case.on_cpu
        else [f"perfgen's authors ran the CPU build only, not {case.stack.build.name}: smoke-run first"]
    )
    if plan.edits.launcher:
        found.append("several processes were run on CPUs over gloo, to the losses of one process, never over NCCL")
    if reads_nvme(plan):
        found.append("DeepSpeed compiles its NVMe reader on first use: nvcc of the CUDA toolkit must be there")
    if plan.best.choice["precision"] == "fp16" and case.model.dtype in ("bfloat16", "torch.bfloat16"):
        found.append(f"{case.model.name} was trained in bf16: in fp16, values above 65504 overflow, so watch for NaN")
    found += [f"{t.id}: no measurement of ours" for t in plan.best.members if t.quality and not t.evidence]
    return found


def dump_answers(plan_document: dict) -> str:
    """Answers for `copier copy --data-file`."""
    import yaml

    return yaml.safe_dump({"plan": plan_document}, sort_keys=False, width=1000)
