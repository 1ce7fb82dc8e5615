"""What plan.json says of the project as a whole."""

from __future__ import annotations

import re
from importlib import metadata

from generator.case.case import Case
from generator.decide.plan import Planned
from generator.emit.plan_document import ProjectPart, TokenizerRecord

TITLES = {
    "causal-lm": "causal language modelling",
    "sft": "supervised fine-tuning",
    "text-classification": "text classification",
}
TRAINED = {"full": "full training", "lora": "LoRA", "qlora": "QLoRA"}
TRAINING = {"full": "Train", "lora": "Train LoRA adapters of", "qlora": "Train LoRA adapters on the 4-bit weights of"}
LEARNER = {
    "causal-lm": "a language model on plain text",
    "sft": "a language model on examples",
    "text-classification": "a text classifier",
}


def read_version() -> str:
    try:
        return metadata.version("perfgen")
    except metadata.PackageNotFoundError:
        return "0"


def make_slug(text: str) -> str:
    """A distribution and folder name: letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "project"


def describe_project(planned: Planned, name: str | None) -> ProjectPart:
    case, request = planned.plan.case, planned.work.request
    workload = case.workload
    what = TRAINED[workload.train] if not workload.from_scratch else "training from scratch"
    doing = f"{what}, {TITLES[workload.task]}" if workload.mode == "train" else f"inference, {TITLES[workload.task]}"
    hub = planned.work.source.kind == "hub"
    device = "portable" if case.portable else case.vendor.torch_device
    return ProjectPart(
        name=make_slug(name or case.model.name.rsplit("/", 1)[-1]),
        mode=workload.mode,
        task=workload.task,
        train=workload.train,
        adapter=workload.train != "full",
        title=f"{TRAINING[workload.train]} {LEARNER[workload.task]}",
        trainer="SFTTrainer" if workload.task == "sft" else "Trainer",
        from_scratch=workload.from_scratch,
        train_tokenizer=not planned.work.source.has_tokenizer and request.tokenizer is None,
        sample=request.model is None,
        hub=hub,
        new_tokens=workload.new_tokens,
        tokenizer=TokenizerRecord(
            source="model" if request.tokenizer is None else "config", revision=hub and request.tokenizer is None
        ),
        data_format=planned.work.data.format if planned.work.data else "txt",
        sft_format=planned.work.data.sft_format if planned.work.data else None,
        chat_template=planned.work.source.has_chat_template,
        pad_to_multiple_of=case.vendor.pad_to_multiple_of,
        device=device,
        machine=describe_machine(case),
        summary=f"{case.model.name}: {doing}, {workload.seq_len} tokens, on {describe_machine(case)}",
    )


def describe_machine(case: Case) -> str:
    if case.portable:
        return "any machine"
    gib = case.device_memory_bytes / 2**30
    if case.on_cpu:
        cpu = case.hardware.cpu
        return f"{cpu.budget or cpu.cores} CPUs ({cpu.model_name or cpu.architecture}), {gib:.0f} GiB"
    nodes = f"{case.nodes} nodes of " if case.nodes > 1 else ""
    return f"{nodes}{case.devices_per_node} x {case.device.name}, {gib:.0f} GiB{' each' if case.devices > 1 else ''}"
