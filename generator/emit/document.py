"""The plan document: everything that plan.json holds and that a template may print. Computed here, printed there."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from generator.decide.candidates import Candidate
from generator.decide.device_count import DeviceCount
from generator.decide.notes import Note
from generator.decide.plan import Plan, Planned
from generator.decide.reasons import Decision, Rejected, list_changes
from generator.emit.config_yaml import build_config
from generator.emit.figures import describe_estimate, round_floats, summarize_candidate
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
    workload = case.workload
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
        "runners_up": [describe_runner_up(plan, c) for c in plan.runners_up],
        "devices": describe_devices(plan),
        "edits": merge_edits(plan, plan.serving),
        "parallel": describe_processes(plan),
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
        "notes": list_notes(planned),
    }


def list_notes(planned: Planned) -> list[dict]:
    """What a reader must know, each with what it is about."""
    work = planned.work
    of_inputs = [Note(kind="model", text=text) for text in work.source.notes]
    of_inputs += [Note(kind="data", text=text) for text in (work.data.notes if work.data else ())]
    return [asdict(note) for note in (*planned.notes, *of_inputs)]


def describe_layout(plan: Plan) -> dict:
    """How the devices are divided."""
    best = plan.best.layout
    return asdict(best) | {"devices": best.devices, "of_devices": plan.case.devices}


def describe_devices(plan: Plan) -> list[dict]:
    """What the best plan on each number of devices gives. ``gpu_hours`` is the whole run's, null where its steps are not known."""
    return [describe_count(plan, count) for count in plan.counts]


def describe_count(plan: Plan, count: DeviceCount) -> dict:
    best = count.best
    described: dict[str, Any] = {"count": count.count, "chosen": best is plan.best, "fits": best is not None}
    if best is None:
        keys = ("step_seconds", "tokens_per_second", "gpu_hours", "gpu_hours_per_1000_steps", "peak_memory_gib")
        return described | dict.fromkeys(keys) | {"changes": [], "why_not": count.why_not}
    workload = plan.case.workload
    steps = (workload.steps or workload.max_steps) if workload.mode == "train" else None
    hours = None if plan.case.on_cpu else best.estimate.step_seconds * count.count / 3600
    figures = {
        "gpu_hours": hours * steps if hours and steps else None,
        "gpu_hours_per_1000_steps": hours and hours * 1000,
    }
    changes = list(list_changes(plan.best, best, of_devices=False))
    return described | summarize_candidate(best) | round_floats(figures) | {"changes": changes, "why_not": None}


def describe_runner_up(plan: Plan, candidate: Candidate) -> dict:
    changes = list(list_changes(plan.best, candidate))
    return {"choice": candidate.choice, "changes": changes, "estimate": summarize_candidate(candidate)}


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


def describe_decision(decision: Decision) -> dict:
    return {
        "axis": decision.axis,
        "chosen": decision.chosen,
        "open": decision.is_open,
        "why": decision.why,
        "quality_note": decision.quality_note,
        "evidence": [asdict(e) for e in decision.evidence],
        "basis": decision.basis,
        "rejected": [describe_rejected(r) for r in decision.rejected],
    }


def describe_rejected(rejected: Rejected) -> dict:
    """``cost`` is that of the best plan with it, or of the nearest where none fits; null where it cannot be used at all."""
    rival = rejected.rival
    cost = rival and {"fits": rejected.fits} | summarize_candidate(rival) | {"devices": rival.layout.devices}
    return {"name": rejected.name, "why": rejected.why, "cost": cost, "changes": list(rejected.changes)}


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
