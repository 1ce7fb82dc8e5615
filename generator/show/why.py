"""`perfgen why` and `why-not`: read off a plan document, so they can never disagree with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from generator.decide.candidates import FULL_SHARE, PLAINNESS
from generator.emit.fixed import CONFIG_REASONS, list_keys, list_rows
from generator.emit.plan_document import (
    ABSENT,
    BatchRecord,
    CandidateCostRecord,
    DecisionRecord,
    DeviceCountRecord,
    EditRecord,
    PlanDocument,
    RejectedCostRecord,
    RejectedRecord,
)
from generator.emit.plan_json import to_json
from generator.emit.run_total import name_hours
from generator.errors import NothingFits, UsageError, suggest_names
from generator.figures import format_figure
from generator.techniques.base import Measured, Published
from generator.techniques.edits import write_literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What was not taken, why, and its cost where it has one."""

    name: str
    why: str
    cost: RejectedCostRecord | CandidateCostRecord | DeviceCountRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Why an emitted value is what it is. ``technique`` is what it comes from, ``inputs`` what that was decided for."""

    key: str
    value: object = ABSENT
    place: str = ABSENT
    comment: str = ABSENT
    technique: str = ABSENT
    why: str
    quality_note: str = ABSENT
    evidence: tuple[Published | Measured, ...] = ABSENT
    basis: str = ABSENT
    rejected: tuple[Alternative | RejectedRecord, ...] = ()
    inputs: dict[str, Any] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a technique was taken, and why not. ``instead`` is what was chosen on its axis."""

    technique: str
    taken: bool
    why: str
    cost: RejectedCostRecord | None = ABSENT
    instead: str | None = ABSENT


def explain_key(document: PlanDocument, key: str) -> Answer:
    """The decision behind an axis, a technique, or a keyword, setting or variable that the project contains.

    Raises ``UsageError`` for what the project does not contain.
    """
    answers = (explain(document, key) for explain in EXPLAINERS)
    answer = next((a for a in answers if a is not None), None)
    if answer is None:
        others = "name an axis (precision), a technique (bf16) or a key of config.yaml"
        raise UsageError(f"nothing in this project is called {key!r}", suggest_names(key, list_known(document), others))
    return answer


def list_known(document: PlanDocument) -> list[str]:
    """What `why` has an answer for."""
    return [
        *(d.axis for d in list_decisions(document)),
        *(e.name for e in document.provenance),
        *(row.name for row in list_rows(document)),
        *to_json(document.yours),
        *(key for key, _ in list_keys(to_json(document.config))),
        *BATCH,
        *DEVICES,
    ]


def list_decisions(document: PlanDocument) -> tuple[DecisionRecord, ...]:
    """Those of the plan itself, then those of how its result is served."""
    return document.decisions + (document.serving.decisions if document.serving else ())


def explain_decision(document: PlanDocument, key: str) -> Answer | None:
    for decision in list_decisions(document):
        if key in (decision.axis, decision.chosen, f"{decision.axis}={decision.chosen}"):
            return describe_decision(document, key, decision)
    return None


def explain_edit(document: PlanDocument, key: str) -> Answer | None:
    """What a technique wrote; a setting of a configuration file also by the last of its dotted names."""
    for edit in document.provenance:
        if key in (edit.name, edit.name.rsplit(".", 1)[-1]):
            decision = next(d for d in list_decisions(document) if d.axis == edit.axis)
            return describe_decision(document, key, decision, edit)
    return None


def describe_decision(
    document: PlanDocument, key: str, decision: DecisionRecord, edit: EditRecord | None = None
) -> Answer:
    return Answer(
        key=key,
        value=edit.code if edit else ABSENT,
        place=edit.place if edit else ABSENT,
        comment=edit.why if edit else ABSENT,
        technique=f"{decision.axis}={decision.chosen}",
        why=decision.why,
        quality_note=decision.quality_note,
        evidence=decision.evidence,
        basis=decision.basis,
        rejected=decision.rejected,
        inputs=list_inputs(document) | {"seq_len": document.yours.seq_len, "global_batch": document.yours.global_batch},
    )


def list_inputs(document: PlanDocument) -> dict[str, Any]:
    return {"device": document.case.device.name, "model": document.case.model.name}


BATCH = {
    "batch": "micro_batch",
    "micro_batch": "micro_batch",
    "accumulation": "accumulation",
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
}
"""What follows from the batch split: the field of ``BatchRecord`` by name."""


def explain_batch(document: PlanDocument, key: str) -> Answer | None:
    """Why this micro-batch: the largest that fits, and what the others would have cost."""
    batch = document.batch
    if key not in BATCH:
        return None
    if document.project.mode == "infer":
        return Answer(key=key, value=getattr(batch, BATCH[key]), why="yours: --concurrency prompts at a time")
    whose = "the default" if "global_batch" in document.defaults else "your"
    return Answer(
        key=key,
        value=getattr(batch, BATCH[key]),
        technique="batch split",
        why=f"{batch.micro_batch} x {batch.accumulation}{format_copies(document)} = {whose} global batch of "
        f"{batch.global_batch}: {explain_micro_batch(batch)}",
        basis=document.estimate.basis,
        rejected=tuple(
            Alternative(
                name=f"{split.micro_batch} x {split.accumulation}",
                why=format_cost(split) + ("" if split.fits else ": does not fit"),
                cost=split,
            )
            for split in batch.splits
            if split.micro_batch != batch.micro_batch
        ),
        inputs=list_inputs(document),
    )


def explain_micro_batch(batch: BatchRecord) -> str:
    """Why the largest that fits, or why not."""
    larger = [split for split in batch.splits if split.fits and split.micro_batch > batch.micro_batch]
    if not larger:
        return "the largest micro-batch that fits, since fewer passes are never slower in published runs"
    chosen = next(split for split in batch.splits if split.micro_batch == batch.micro_batch)
    if min(split.step_seconds for split in larger) > chosen.step_seconds:
        return "the fastest micro-batch: a larger one is padded to longer texts, or is more stages' idle time"
    return f"a larger micro-batch would gain less than {PLAINNESS:.0%}, and fill the device beyond {FULL_SHARE:.0%}"


def format_copies(document: PlanDocument) -> str:
    count = document.layout.replicate * document.layout.shard
    return f" on each of {count}" if count > 1 else ""


def format_cost(cost: CandidateCostRecord) -> str:
    return f"{format_figure(cost.step_seconds)} s a step, {cost.peak_memory_gib:.1f} GiB"


DEVICES = {
    "devices": "devices",
    "nproc-per-node": "per_node",
    "num_processes": "devices",
    "num_machines": "nodes",
    "nnodes": "nodes",
}
"""What follows from how many devices are used: the field of ``LayoutRecord`` by name."""


def explain_devices(document: PlanDocument, key: str) -> Answer | None:
    """Why so many devices, and what the best plan on other numbers of them would cost."""
    layout, estimate = document.layout, document.estimate
    each, many = ("a step", "steps") if document.project.mode == "train" else ("an answer", "answers")
    if key not in DEVICES or layout.of_devices == 1:
        return None
    return Answer(
        key=key,
        value=getattr(layout, DEVICES[key]),
        technique=f"parallelism={document.choice['parallelism']}",
        why="; ".join(find_device_notes(document))
        or f"all {layout.devices} are used: {format_figure(estimate.step_seconds)} s {each}",
        basis=estimate.basis,
        rejected=tuple(
            Alternative(
                name=f"{other.count} device{'s' if other.count > 1 else ''}",
                why=format_device_count(other, each, many, name_hours(document.project.accelerator)),
                cost=other if other.fits else None,
            )
            for other in document.devices
            if not other.chosen
        ),
        inputs=list_inputs(document),
    )


def find_device_notes(document: PlanDocument) -> list[str]:
    return [note.text for note in document.notes if note.kind == "devices"]


def format_device_count(row: DeviceCountRecord, each: str, many: str, hours_name: str) -> str:
    """What the best plan on so many devices costs, and what else changes."""
    if row.step_seconds is None:
        return row.why_not or ""
    hours = ""
    if row.gpu_hours is not None:
        hours = f", {format_figure(row.gpu_hours)} {hours_name}"
    elif row.gpu_hours_per_1000_steps is not None:
        hours = f", {format_figure(row.gpu_hours_per_1000_steps)} {hours_name} per 1,000 {many}"
    changes = f" (with {', '.join(row.changes)})" if row.changes else ""
    return f"{format_figure(row.step_seconds)} s {each}, {row.peak_memory_gib:.1f} GiB{hours}{changes}"


def explain_fixed(document: PlanDocument, key: str) -> Answer | None:
    """What every project of its kind has."""
    for row in list_rows(document):
        if key == row.name:
            value = ABSENT if row.value is None else write_literal(row.value)
            return Answer(key=key, value=value, why=row.reason)
    return None


def explain_user_value(document: PlanDocument, key: str) -> Answer | None:
    """A value of the user's, also by its key in config.yaml: who gave it, and where a default comes from."""
    name = CONFIG_VALUES.get(key, key)
    values = to_json(document.yours)
    if name not in values:
        return None
    if name in document.defaults:
        why = f"default: {document.defaults[name]}"
        why += "" if "change it" in why else "; yours to change, perfgen never does"
    else:
        why = f"yours ({getattr(document.case.workload, name).why}): perfgen never changes it"
    in_config = key in CONFIG_VALUES
    written = dict(list_keys(to_json(document.config))) if in_config else {}
    value = next((v for k, v in written.items() if key in (k, k.rsplit(".", 1)[-1])), values[name])
    return Answer(key=key, value=value, place="config.yaml" if in_config else ABSENT, why=why)


CONFIG_VALUES = {
    "prompt_tokens": "seq_len",
    "training.learning_rate": "learning_rate",
    "training.num_train_epochs": "epochs",
    "num_train_epochs": "epochs",
    "training.max_steps": "max_steps",
    "training.warmup_steps": "warmup",
    "warmup_steps": "warmup",
    "training.weight_decay": "weight_decay",
    "training.seed": "seed",
    "lora.r": "lora_rank",
    "lora.lora_alpha": "lora_alpha",
    "lora.lora_dropout": "lora_dropout",
}
"""Values of the user's by their key in config.yaml, where that is another."""


def explain_config(document: PlanDocument, key: str) -> Answer | None:
    """A key of config.yaml, also by the last of its dotted names."""
    for name, value in list_keys(to_json(document.config)):
        if key in (name, name.rsplit(".", 1)[-1]):
            return Answer(key=key, value=value, place="config.yaml", why=explain_config_value(document, name))
    return None


def explain_config_value(document: PlanDocument, name: str) -> str:
    """With what that comes to here, where it may be more than its rule says."""
    evaluation = document.evaluation
    if name != "training.eval_steps" or not evaluation:
        return CONFIG_REASONS[name]
    return f"{CONFIG_REASONS[name]}; here it takes {evaluation.share * 100:.1f} %"


def explain_inner_keyword(document: PlanDocument, key: str) -> Answer | None:
    """A keyword of a call that a technique wrote as a value."""
    for edit in document.provenance:
        if isinstance(edit.code, str) and re.search(rf"\b{re.escape(key)}=", edit.code):
            decision = next(d for d in list_decisions(document) if d.axis == edit.axis)
            return describe_decision(document, key, decision, edit)
    return None


def explain_requirement(document: PlanDocument, key: str) -> Answer | None:
    for requirement in document.requirements:
        name, _, version = requirement.partition("==")
        if key in (name, requirement):
            return Answer(key=key, value=version, why="of the set of versions that were run together (stacks.toml)")
    return None


EXPLAINERS: tuple[Callable[[PlanDocument, str], Answer | None], ...] = (
    explain_decision,
    explain_edit,
    explain_batch,
    explain_devices,
    explain_user_value,
    explain_config,
    explain_fixed,
    explain_requirement,
    explain_inner_keyword,
)
"""Asked in this order: the first that knows the name answers."""


def explain_rejection(document: PlanDocument, technique: str) -> Verdict:
    """The reason recorded in the plan for a technique that was not taken. Accepts NAME or AXIS=NAME.

    Raises ``UsageError`` for a name that no technique has, or several.
    """
    axis, _, name = technique.rpartition("=")
    rejections = []
    for decision in document.decisions:
        if axis and decision.axis != axis:
            continue
        if decision.chosen == name:
            return Verdict(technique=f"{decision.axis}={name}", taken=True, why=decision.why)
        rejections += [(decision, r) for r in decision.rejected if r.name == name]
    if len(rejections) > 1:
        options = ", ".join(f"{d.axis}={name}" for d, _ in rejections)
        raise UsageError(f"{name} is the name of several techniques", f"say which: {options}")
    if rejections:
        decision, rejected = rejections[0]
        return Verdict(
            technique=f"{decision.axis}={name}",
            taken=False,
            why=rejected.why,
            cost=rejected.cost,
            instead=decision.chosen,
        )
    chosen = [f"{d.axis}={d.chosen}" for d in document.decisions]
    return explain_inapplicable(technique, document.project.mode, chosen)


def explain_allowance(ladder: tuple, technique: str) -> Verdict | None:
    """For a technique that would make fit what nothing does, if the user allowed it."""
    for rung in ladder:
        if rung.technique and technique in (rung.technique, rung.technique.partition("=")[2]):
            cost = rung.best.estimate
            why = (
                f"nothing fits without it, and it is taken on request only: {rung.change}; with {rung.option} it fits: "
                f"{cost.peak_memory_gib:.1f} of {cost.limit_gib:.1f} GiB, {format_figure(cost.step_seconds)} s a step"
            )
            return Verdict(technique=rung.technique, taken=False, why=why, instead=None)
    return None


def explain_refused(error: NothingFits, technique: str, mode: str) -> Verdict | None:
    """Where nothing fits. ``None`` where it is not known what was looked at. Raises ``UsageError`` as ``explain_rejection`` does."""
    from generator.techniques.base import list_axes

    if error.obstacles is None:
        return None
    named = [t for axis in list_axes() for t in axis.for_mode(mode) if technique in (t.name, t.id)]
    if len(named) > 1:
        raise UsageError(
            f"{technique} is the name of several techniques", f"say which: {', '.join(t.id for t in named)}"
        )
    if not named:
        return explain_inapplicable(technique, mode)
    if allowance := explain_allowance(error.ladder, technique):
        return allowance
    unusable = error.obstacles.get(named[0].id)
    why = f"{unusable}; none of the nearest plans that fit has it" if unusable else "with it, too, nothing fits"
    return Verdict(technique=named[0].id, taken=False, why=f"{why}: {error.message}", instead=None)


def explain_inapplicable(technique: str, mode: str, chosen: Sequence[str] = ()) -> Verdict:
    """A technique of the other mode, or what is known by a name that none has: it is taken where one of ``chosen`` does it.
    Raises ``UsageError`` for any other name."""
    from generator.techniques.base import list_axes
    from generator.techniques.elsewhere import find_named

    known = [t.name for a in list_axes() for t in a.members] + [t.id for a in list_axes() for t in a.members]
    if technique in known:
        why = f"it is not a technique of --mode {mode}"
        return Verdict(technique=technique, taken=False, why=why, cost=None, instead=None)
    if named := find_named(technique):
        taken = [t for t in named.here if t in chosen]
        why = named.describe() + (f"; this plan takes {' and '.join(taken)}" if taken else "")
        return Verdict(technique=technique, taken=bool(taken) and not named.retired, why=why, cost=None, instead=None)
    hint = suggest_names(technique.lower().replace("_", "-"), known, "`perfgen techniques` lists them")
    raise UsageError(f"there is no technique {technique}", hint)


def format_verdict(verdict: Verdict) -> str:
    words = "taken" if verdict.taken else f"not taken (chosen: {verdict.instead or 'none'})"
    return f"{verdict.technique}: {words}\n  {verdict.why}"


def format_answer(answer: Answer) -> str:
    lines = [answer.key if answer.value is ABSENT else f"{answer.key} = {answer.value}"]
    if answer.technique:
        lines.append(f"  from {answer.technique}")
    lines.append(f"  {answer.why}")
    if answer.quality_note:
        lines.append(f"  mind: {answer.quality_note}")
    lines += [f"  not {r.name}: {r.why}" for r in answer.rejected]
    lines += [f"  source: {e.url}  ({e.claim})" for e in answer.evidence or () if isinstance(e, Published)]
    return "\n".join(lines)
