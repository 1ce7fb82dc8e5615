"""The plan document: everything that plan.json holds and that a template may print. Computed here, printed there."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from importlib import metadata
from typing import Any

from generator.candidates import HEADROOM_SHARE, Candidate
from generator.cost.estimate import Estimate
from generator.edits import Argument, Edits
from generator.parallel import parallel, visible_devices
from generator.pipeline import Planned
from generator.plan import Decision, Plan
from generator.technique import Technique
from generator.workload import Case
from hwdetect.types import Hardware

SCHEMA = 1
BASE = ("torch", "transformers", "accelerate", "datasets", "pyyaml", "matplotlib")
TITLES = {
    "causal-lm": "causal language modelling",
    "sft": "supervised fine-tuning",
    "text-classification": "text classification",
}
TRAINED = {"full": "full training", "lora": "LoRA", "qlora": "QLoRA"}


def document(planned: Planned, name: str | None = None) -> dict:
    """The content of plan.json: complete, so that rendering needs nothing else. ``name`` is the project's, if it has one."""
    return json.loads(json.dumps(content(planned, name)))  # what a reader of plan.json gets: lists, no tuples


def content(planned: Planned, name: str | None) -> dict:
    plan, case = planned.plan, planned.plan.case
    workload = case.workload
    return {
        "schema": SCHEMA,
        "perfgen": version(),
        "project": project(planned, name),
        "case": {
            "device": rounded(asdict(case.device) | {"sources": dict(case.device.sources)}),
            "device_memory_bytes": case.device_memory_bytes,
            "model": asdict(case.model),
            "workload": asdict(workload),
            "hardware": stable(case.hardware),
        },
        "choice": plan.best.choice,
        "layout": layout(plan),
        "batch": {
            "micro_batch": plan.best.execution.micro_batch,
            "accumulation": plan.best.execution.accumulation,
            "global_batch": plan.best.execution.micro_batch * plan.best.execution.accumulation * plan.best.execution.dp,
            "splits": [brief(c) | {"fits": c.fits} for c in plan.splits],
        },
        "estimate": estimate(plan.best.estimate),
        "decisions": [decision(d) for d in plan.decisions],
        "runners_up": [{"choice": c.choice, "estimate": brief(c)} for c in plan.runners_up],
        "edits": edits(plan, plan.serving),
        "parallel": parallel(plan),
        "visible_devices": visible_devices(plan),
        "provenance": provenance(plan) + (provenance(plan.serving) if plan.serving else []),
        "yours": yours(planned),
        "serving": serving(plan.serving) if plan.serving else None,
        "config": config(planned),
        "requirements": requirements(plan),
        "versions": dict(case.stack.packages),
        "docker": docker(plan),
        "files": {"pyproject.toml": pyproject(planned, name)},
        "untested": untested(plan),
        "notes": list(planned.notes) + list(planned.source.notes) + (list(planned.data.notes) if planned.data else []),
    }


def layout(plan: Plan) -> dict:
    """How the devices are divided, and what the same techniques would cost on fewer, more, or otherwise divided ones."""
    best = plan.best.layout
    others = [asdict(c.layout) | {"devices": c.layout.devices} | brief(c) for c in plan.layouts]
    return asdict(best) | {"devices": best.devices, "of_devices": plan.case.devices, "others": others}


def version() -> str:
    try:
        return metadata.version("perfgen")
    except metadata.PackageNotFoundError:
        return "0"


def slug(text: str) -> str:
    """A distribution and folder name: letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "project"


def project(planned: Planned, name: str | None) -> dict:
    case, request = planned.plan.case, planned.request
    workload = case.workload
    what = TRAINED[workload.train] if not workload.from_scratch else "training from scratch"
    doing = f"{what}, {TITLES[workload.task]}" if workload.mode == "train" else f"inference, {TITLES[workload.task]}"
    device = "portable" if case.portable else "cpu" if case.on_cpu else "cuda"
    return {
        "name": slug(name or case.model.name.rsplit("/", 1)[-1]),
        "mode": workload.mode,
        "task": workload.task,
        "train": workload.train,
        "trainer": "SFTTrainer" if workload.task == "sft" else "Trainer",
        "from_scratch": workload.from_scratch,
        "train_tokenizer": not planned.source.has_tokenizer and request.tokenizer is None,
        "sample": request.model is None,
        "hub": planned.source.kind == "hub",
        "new_tokens": workload.new_tokens,
        "tokenizer_source": tokenizer_source(planned),
        "data_format": planned.data.format if planned.data else "txt",
        "sft_format": planned.data.sft_format if planned.data else None,
        "chat_template": planned.source.has_chat_template,
        "pad_to_multiple_of": 8 if device == "cuda" else None,
        "device": device,
        "machine": machine(case),
        "summary": f"{case.model.name}: {doing}, {workload.seq_len} tokens, on {machine(case)}",
    }


def tokenizer_source(planned: Planned) -> str:
    """The arguments of AutoTokenizer.from_pretrained, as code."""
    if planned.request.tokenizer is not None:
        return 'CONFIG["tokenizer"]'
    return 'MODEL, revision=CONFIG["revision"]' if planned.source.kind == "hub" else "MODEL"


def machine(case: Case) -> str:
    if case.portable:
        return "any machine"
    gib = case.device_memory_bytes / 2**30
    if case.on_cpu:
        cpu = case.hardware.cpu
        return f"{cpu.budget or cpu.cores} CPUs ({cpu.model_name or cpu.architecture}), {gib:.0f} GiB"
    nodes = f"{case.nodes} nodes of " if case.nodes > 1 else ""
    return f"{nodes}{case.devices_per_node} x {case.device.name}, {gib:.0f} GiB{' each' if case.devices > 1 else ''}"


VOLATILE = {
    "available_bytes",
    "swap_used_bytes",
    "free_memory_bytes",
    "free_bytes",
    "temperature_c",
    "throttle_reasons",
}
PRIVATE = {"uuid", "pci_address", "path", "visible_devices"}


def stable(hardware: Hardware) -> dict:
    """What was read of the machine, less what changes from minute to minute and what names it."""
    kept = clean(asdict(hardware))
    return {
        key: kept[key] for key in ("cpu", "memory", "boards", "accelerators", "links", "nodes", "software", "measured")
    }


def clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if k not in VOLATILE | PRIVATE and v is not None}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    return value


def rounded(value: Any) -> Any:
    """Floats to 6 significant digits: the last bits of a product are not worth a difference between machines."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return value


def estimate(found: Estimate) -> dict:
    return rounded(
        {
            "memory_gib": {p.name: p.value for p in found.memory},
            "peak_memory_gib": found.peak_memory_gib,
            "allocator_peak_gib": found.allocator_peak_gib,
            "limit_gib": found.limit_gib,
            "headroom_gib": found.headroom_gib,
            "headroom_share": HEADROOM_SHARE,
            "time_seconds": {p.name: p.value for p in found.time},
            "step_seconds": found.step_seconds,
            "tokens_per_step": found.tokens_per_step,
            "tokens_per_second": found.tokens_per_second,
            "basis": found.basis,
            "sources": {p.name: {"basis": p.basis, "source": p.source} for p in (*found.memory, *found.time)},
        }
    )


def brief(candidate: Candidate) -> dict:
    run = candidate.execution
    return sizes(candidate.estimate) | {"micro_batch": run.micro_batch, "accumulation": run.accumulation}


def sizes(found: Estimate) -> dict:
    return rounded(
        {
            "peak_memory_gib": found.peak_memory_gib,
            "step_seconds": found.step_seconds,
            "tokens_per_second": found.tokens_per_second,
        }
    )


def decision(found: Decision) -> dict:
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
                "cost": None if r.cost is None else {"fits": r.fits} | sizes(r.cost),
            }
            for r in found.rejected
        ],
    }


INFER_PLACES = tuple(f.name for f in fields(Edits) if f.name.startswith("infer_"))


def edits(plan: Plan, serving_plan: Plan | None) -> dict:
    """The merged edits; a training plan takes its infer places from the serving plan."""
    merged = {f.name: [as_json(item) for item in getattr(plan.edits, f.name)] for f in fields(Edits)}
    if serving_plan is not None:
        for place in INFER_PLACES:
            merged[place] = [as_json(item) for item in getattr(serving_plan.edits, place)]
    return merged


def as_json(item: object) -> object:
    return asdict(item) if isinstance(item, Argument) else list(item) if isinstance(item, tuple) else item


def provenance(plan: Plan) -> list[dict]:
    """Every emitted keyword and variable, and the axis whose technique set it."""
    return [
        {"name": name, "code": code, "why": why, "place": place, "axis": technique.axis}
        for technique in plan.best.members
        for place, name, code, why in keyed(technique, replace(plan.case, layout=plan.best.layout))
    ]


def keyed(technique: Technique, case: Case) -> list[tuple[str, str, str, str]]:
    written = technique.edits(case)
    infer = case.workload.mode == "infer"
    found = []
    for place in (f.name for f in fields(Edits)):
        if place in ("environment", "deepspeed", "accelerate"):
            found += [(place, name, str(value), "") for name, value in getattr(written, place)]
        elif place.endswith("arguments") and place.startswith("infer_") == infer:
            found += [(place, a.name, a.code, a.why) for a in getattr(written, place)]
    return found


def yours(planned: Planned) -> dict:
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


def serving(plan: Plan) -> dict:
    return {
        "choice": plan.best.choice,
        "estimate": estimate(plan.best.estimate),
        "decisions": [decision(d) for d in plan.decisions],
    }


def config(planned: Planned) -> dict:
    """config.yaml: every value that comes from outside, and of those the ones that this project reads."""
    plan, source, request = planned.plan, planned.source, planned.request
    training = plan.case.workload.mode == "train"
    found: dict = {"model": "sample" if request.model is None else source.path}
    if source.kind == "hub":
        found["revision"] = source.revision
    if request.tokenizer is not None:
        found["tokenizer"] = request.tokenizer
    if training:
        found |= data_config(planned) | {"output_dir": "runs"} | training_config(plan)
    elif plan.case.workload.task == "text-classification":
        found["seq_len"] = plan.case.workload.seq_len
    if not plan.case.portable:
        found["machine"] = fingerprint(plan)
    return found


def data_config(planned: Planned) -> dict:
    data, request, workload = planned.data, planned.request, planned.plan.case.workload
    kind = data.format if data else "txt"
    sample = request.model is None and not request.data
    found: dict = {"data": "sample/text.txt" if sample else data.path if data else None}
    if kind == "hub":
        found["data_revision"] = None
    if data and kind != "txt":
        found["text_column"] = data.text_column
    if workload.task == "text-classification":
        found["label_column"] = data.label_column if data else request.label_column
    return found | {"skip_bad": request.skip_bad, "seq_len": workload.seq_len}


def training_config(plan: Plan) -> dict:
    """``training`` holds names of TrainingArguments; train.py passes them on as they are."""
    workload = plan.case.workload
    schedule_free = plan.best.choice["optimizer"] == "schedule-free"
    found: dict = {
        "training": {
            "learning_rate": workload.learning_rate,
            "num_train_epochs": workload.epochs,
            "max_steps": workload.max_steps or -1,
            "warmup_steps": workload.warmup,
            "weight_decay": workload.weight_decay,
            "seed": workload.seed,
            "lr_scheduler_type": "constant" if schedule_free else "linear",
            "logging_steps": 1,
            "save_steps": SAVE_STEPS,
        }
    }
    if workload.train != "full":
        found["lora"] = {"r": workload.lora_rank, "lora_alpha": workload.lora_alpha, "lora_dropout": LORA_DROPOUT}
    return found


LORA_DROPOUT = 0.05
"""The value of the QLoRA paper for its smaller models (https://arxiv.org/abs/2305.14314); yours to change."""
SAVE_STEPS = 500
"""TrainingArguments' own default; yours to change."""


def fingerprint(plan: Plan) -> dict:
    """What the guard at the top of the scripts compares the machine with."""
    case = plan.case
    have = {
        "memory_gib": round(case.device_memory_bytes / 2**30, 1),
        "needs_gib": round(plan.best.estimate.peak_memory_gib, 1),
    }
    if case.on_cpu:
        return {"device": "cpu", "cpus": case.hardware.cpu.budget} | have
    return {"device": "cuda", "name": case.device.name, "compute_capability": case.device.compute_capability} | have


def requirements(plan: Plan) -> list[str]:
    """Pinned distributions, from the tested stack."""
    wanted = {*BASE, *plan.edits.requirements, *(plan.serving.edits.requirements if plan.serving else ())}
    if plan.case.workload.task == "sft":
        wanted.add("trl")
    return [f"{name}=={plan.case.stack.version(name)}" for name in sorted(wanted)]


def docker(plan: Plan) -> dict:
    """The base image, what it lacks, and the shared memory that data-loading workers need."""
    stack = plan.case.stack
    members = (*plan.best.members, *(plan.serving.best.members if plan.serving else ()))
    compiles = any(t.compiles for t in members)
    return {
        "base": stack.build.image,
        "torch_index": stack.build.index,
        "packages": (["g++"] if compiles else []) + (["libaio-dev"] if reads_nvme(plan) else []),
        "shm_size": "8g" if plan.best.execution.dataloader_workers or plan.best.layout.devices > 1 else "1g",
    }


def reads_nvme(plan: Plan) -> bool:
    return any(value == "nvme" for _, value in plan.edits.deepspeed)


def pyproject(planned: Planned, name: str | None) -> str:
    """The project's pyproject.toml, dumped from data."""
    import tomli_w

    plan, stack = planned.plan, planned.plan.case.stack
    index = {"name": f"torch-{stack.build.name}", "url": stack.build.index, "explicit": True}
    return tomli_w.dumps(
        {
            "build-system": {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"},
            "project": {
                "name": project(planned, name)["name"],
                "version": "0.1.0",
                "description": "Generated by perfgen; yours from here on.",
                "requires-python": stack.python,
                "dependencies": requirements(plan),
                "optional-dependencies": {"test": [f"pytest=={stack.version('pytest')}"]},
            },
            "tool": {
                "setuptools": {"py-modules": []},
                "uv": {"sources": {"torch": [{"index": index["name"]}]}, "index": [index]},
                "ruff": {"line-length": 120},
            },
        }
    )


def untested(plan: Plan) -> list[str]:
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


def answers(plan_document: dict) -> str:
    """Answers for `copier copy --data-file`."""
    import yaml

    return yaml.safe_dump({"plan": plan_document}, sort_keys=False, width=1000)
