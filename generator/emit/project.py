"""What plan.json says of the project as a whole."""

from __future__ import annotations

import json
import re

from generator.case.case import Case
from generator.case.tasks import find_task
from generator.decide.plan import Planned
from generator.emit.plan_document import (
    ABSENT,
    LocalSourceRecord,
    ProjectPart,
    RowExample,
    TokenizerRecord,
    ToolkitRecord,
)
from generator.inputs.data_files import DataSource
from generator.inputs.tokenizer_revision import is_on_hub
from generator.model.classifiers import NAMES_NO_LABELS, READS_END
from hwdetect.machine.installed import list_versions

TRAINED = {"full": "full training", "lora": "{adapter}", "qlora": "QLoRA{form}"}
TRAINING = {
    "full": "Train",
    "lora": "Train {adapter} adapters of",
    "qlora": "Train {adapter} adapters on the 4-bit weights of",
}
ADAPTER = {"lora": "LoRA", "dora": "DoRA", "rslora": "rsLoRA"}


def read_version() -> str:
    """perfgen's own; "0" where it is not installed."""
    return dict(list_versions(["perfgen"])).get("perfgen", "0")


def make_slug(text: str) -> str:
    """A distribution and folder name: letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "project"


def describe_project(planned: Planned, name: str | None, sources: tuple[LocalSourceRecord, ...] = ()) -> ProjectPart:
    case, request = planned.plan.case, planned.work.request
    workload, task = case.workload, case.workload.task_facts
    adapter = ADAPTER[workload.adapter]
    form = "" if workload.adapter == "lora" else f" with {adapter} adapters"
    what = (
        TRAINED[workload.train].format(adapter=adapter, form=form)
        if not workload.from_scratch
        else "training from scratch"
    )
    doing = f"{what}, {task.training}" if workload.mode == "train" else f"inference, {task.title}"
    hub = planned.work.source.kind == "hub"
    data = planned.work.data
    recognised = data.recognised if data else None
    device = "portable" if case.portable else case.vendor.torch_device
    return ProjectPart(
        name=make_slug(name or case.model.name.rsplit("/", 1)[-1]),
        mode=workload.mode,
        task=workload.task,
        train=workload.train,
        adapter=workload.train != "full",
        title=f"{TRAINING[workload.train].format(adapter=adapter)} {task.learner or workload.task}",
        trainer=task.trainer,
        model_class=task.model_class,
        row=RowExample(column=task.column, value=task.example) if workload.by_row else ABSENT,
        from_scratch=workload.from_scratch,
        quantized=case.model.quantization is not None,
        drops_packing=workload.from_scratch and "quantization_config" in json.loads(planned.work.source.config),
        train_tokenizer=workload.from_scratch and not planned.work.source.has_tokenizer and request.tokenizer is None,
        sample=request.model is None,
        hub=hub,
        new_tokens=workload.new_tokens,
        tokenizer=TokenizerRecord(
            source="model" if request.tokenizer is None else "config",
            revision=hub if request.tokenizer is None else is_on_hub(request.tokenizer),
        ),
        data_format=data.format if data else "txt",
        sft_format=data.sft_format if data else None,
        reads_end=True if task.classifies and case.model.model_type in READS_END else ABSENT,
        names_no_labels=True if task.classifies and case.model.model_type in NAMES_NO_LABELS else ABSENT,
        example_leaf=choose_example_leaf(data, workload.task),
        data_endings=data.endings if data else (),
        data_words=recognised.describe() if recognised else None,
        chat_template=planned.work.source.has_chat_template,
        pad_to_multiple_of=case.vendor.pad_to_multiple_of,
        device=device,
        guard="portable" if case.portable else case.vendor.guard,
        accelerator=case.vendor.title,
        hides_devices=case.vendor.visible_devices,
        orders_devices=case.vendor.set_beside(planned.plan.best.layout.per_node),
        contained=case.vendor.contain is not None,
        python=case.stack.python,
        toolkit=describe_toolkit(case),
        machine=describe_machine(case),
        summary=f"{case.model.name}: {doing}, {workload.seq_len} tokens, on {describe_machine(case)}",
        elsewhere=request.hardware is not None and not case.portable,
        sources=sources,
    )


def describe_toolkit(case: Case) -> ToolkitRecord | None:
    kit = None if case.portable else case.vendor.toolkit
    return ToolkitRecord(title=kit.title, variable=kit.variable, set_by=kit.set_by, image=kit.image) if kit else None


def choose_example_leaf(data: DataSource | None, task: str) -> str | None:
    """The leaf that makes an example of a row; ``None`` where rows are lines of text."""
    if data is None or data.format == "txt":
        return None
    if data.recognised is None:
        return find_task(task).example_leaf
    return data.recognised.leaf


def describe_machine(case: Case) -> str:
    if case.portable:
        return "any machine"
    gib = case.device_memory_bytes / 2**30
    if case.on_cpu:
        cpu = case.hardware.cpu
        nodes = f"{case.nodes} nodes of " if case.nodes > 1 else ""
        several = f"{nodes}{case.devices_per_node} processes, each of " if case.devices > 1 else ""
        count = cpu.budget or cpu.cores
        return f"{several}{count} CPU{'s' if count != 1 else ''} ({cpu.model_name or cpu.architecture}), {gib:.0f} GiB"
    nodes = f"{case.nodes} nodes of " if case.nodes > 1 else ""
    return f"{nodes}{case.devices_per_node} x {case.device.name}, {gib:.0f} GiB{' each' if case.devices > 1 else ''}"
