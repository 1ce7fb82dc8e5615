"""What differs between two plans, in words and with reasons: what a person wants to know before an update, or of a drift.

Reasons are the engine's own: what the new plan says of the old choice, and what else differs between the two inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from generator.case.defaults import OPTION_OF
from generator.emit.plan_json import check_parts
from generator.emit.user_values import GIVEN

Plan = Mapping[str, Any]
PARTS = (
    "project", "case", "choice", "layout", "batch", "estimate", "decisions", "yours", "defaults", "serving",
    "config", "requirements", "notes", "evaluation", "run", "saving",
)  # fmt: skip
"""Of plan.json those that are compared."""
COVERED = {
    "machine", "processes", "first_step", "model", "revision", "data", "data_config", "data_split", "data_revision", "columns",
    "text_column", "label_column", "loss_on", "seq_len", "training.learning_rate", "training.num_train_epochs", "training.max_steps",
    "training.warmup_steps", "training.weight_decay", "training.seed", "training.save_steps", "training.eval_steps", "lora.r",
    "lora.lora_alpha", "lora.lora_dropout", "lora.use_dora", "lora.use_rslora", "eval_rows",
}  # fmt: skip
"""Of config.yaml what other lines say."""
OTHER_VALUES = ("new_tokens", "concurrency", "labels", "from_scratch", "packing", "optimize_for")
"""What is asked of a case besides what ``yours`` has."""
OPTIONS = {"packing": "no_packing"}
"""Options that say the opposite of the value."""
NOTICED = 0.005
"""A smaller relative difference of an estimate is not worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference. ``about``: perfgen, machine, model, data, yours, choice, batch, memory, speed, run, versions, config or note."""

    about: str
    name: str
    before: str | None
    after: str | None
    why: str = ""

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            text = f"{self.name}: {f'new, {self.after}' if self.before is None else f'gone, was {self.before}'}"
        else:
            text = f"{self.name} {self.before} → {self.after}"
        return f"{text}: {self.why}" if self.why else text


def compare_plans(old: Plan, new: Plan) -> tuple[Change, ...]:
    """What differs, the causes first. Parts of ``old`` that this version cannot read are left out, and named."""
    before, unread = read_parts(old)
    after = {name: new[name] for name in PARTS if name in new}
    causes = [*compare_versions(old, new), *compare_inputs(before, after)]
    reasons = list_reasons(before, after)
    rest = [
        *compare_choices(before, after, reasons),
        *compare_batches(before, after, reasons),
        *compare_costs(before, after),
        *compare_runs(before, after),
        *compare_requirements(before, after),
        *compare_configs(before, after),
        *compare_notes(before, after),
    ]
    if unread:
        text = f"{', '.join(unread)} of the old plan: written by another version, and not compared"
        rest.append(Change(about="note", name="plan.json", before=None, after=text))
    return (*causes, *rest)


def read_parts(plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """The parts that are as their types have them, and the names of those that are not."""
    parts, unread = {}, []
    for name in PARTS:
        if name in plan:
            try:
                parts |= check_parts(plan, [name])
            except ValueError:
                unread.append(name)
    return parts, unread


def find(plan: Plan, path: str) -> Any:
    """The value under a dotted path; ``None`` where there is none."""
    value: Any = plan
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def differ(before: Plan, after: Plan, path: str, about: str, name: str, why: str = "") -> Iterator[Change]:
    """A change of one value, where both plans have the part that it is in."""
    old, new = find(before, path), find(after, path)
    part = path.split(".")[0]
    if part in before and part in after and old != new:
        yield Change(about=about, name=name, before=show(old), after=show(new), why=why)


def show(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def compare_versions(old: Plan, new: Plan) -> Iterator[Change]:
    if old.get("perfgen") != new.get("perfgen"):
        why = "rules, numbers and template may be others"
        yield Change(
            about="perfgen", name="perfgen", before=show(old.get("perfgen")), after=show(new["perfgen"]), why=why
        )


def compare_inputs(before: Plan, after: Plan) -> Iterator[Change]:
    """The machine, the model, the data, and what the user wants of them."""
    yield from differ(before, after, "project.machine", "machine", "machine")
    if find(before, "case.device.id") == find(after, "case.device.id"):
        for key in ("memory_bytes_per_s", "peak_flops", "link_bytes_per_s"):
            if find(before, f"case.device.{key}") != find(after, f"case.device.{key}"):
                yield Change(
                    about="machine",
                    name=f"{key} of the device",
                    before=None,
                    after="another, measured or in the catalogue",
                )
    limits = find(before, "estimate.limit_gib"), find(after, "estimate.limit_gib")
    if None not in limits and limits[0] != limits[1]:
        yield Change(about="machine", name="usable memory", before=f"{limits[0]:.1f}", after=f"{limits[1]:.1f} GiB")
    yield from differ(before, after, "config.model", "model", "model")
    for name in ("revision", "params", "max_positions", "dtype", "quantization"):
        path = "config.revision" if name == "revision" else f"case.model.{name}"
        yield from differ(before, after, path, "model", f"model's {name}")
    for name in ("data", "data_config", "data_split", "data_revision", "columns", "text_column", "label_column"):
        yield from differ(before, after, f"config.{name}", "data", name.replace("_", " "))
    yield from differ(before, after, "project.data_words", "data", "what the data is")
    yield from compare_values(before, after)


def compare_values(before: Plan, after: Plan) -> Iterator[Change]:
    """The user's values: an option gave the new one, or why the default is that."""
    if "yours" not in before or "yours" not in after:
        return
    defaults = after.get("defaults", {})
    for name in sorted({*before["yours"], *after["yours"]}, key=[*after["yours"], *before["yours"]].index):
        why = f"a default: {defaults[name]}" if name in defaults else name_option(name)
        yield from differ(before, after, f"yours.{name}", "yours", name, why if name in after["yours"] else "")
    for name in OTHER_VALUES:
        origin = find(after, f"case.workload.{name}") or {}
        why = name_option(name) if origin.get("from") == GIVEN else f"a default: {origin.get('why')}"
        yield from differ(before, after, f"case.workload.{name}.value", "yours", name, why)
    for name in ("pins", "allow"):
        old, new = (
            ", ".join("=".join(i) if isinstance(i, list) else i for i in find(p, f"case.workload.{name}") or ())
            for p in (before, after)
        )
        if old != new:
            yield Change(about="yours", name=name, before=old or "none", after=new or "none")


def name_option(name: str) -> str:
    """The option that gave a value."""
    return f"--{OPTIONS.get(name, OPTION_OF.get(name, name)).replace('_', '-')}"


def describe_limit(before: Plan, after: Plan) -> str:
    """ "3 GiB less are usable", where that is worth a word."""
    limits = find(before, "estimate.limit_gib"), find(after, "estimate.limit_gib")
    if None in limits or abs(limits[1] - limits[0]) < 0.05:
        return ""
    size = abs(limits[1] - limits[0])
    return f"{size:.1f}".removesuffix(".0") + f" GiB {'less' if limits[1] < limits[0] else 'more'} are usable"


def list_reasons(before: Plan, after: Plan) -> tuple[str, ...]:
    """What a different choice or batch may come from, in words."""
    mode, trained = (find(plan, "case.workload.mode.value") for plan in (after, before))
    if None not in (mode, trained) and mode != trained:
        return (f"mode {show(mode)} instead of {show(trained)}",)  # nothing of the one is to be compared with the other
    reasons = []
    if find(before, "case.device.id") != find(after, "case.device.id"):
        reasons.append(f"on {find(after, 'case.device.name')}")
    if limit := describe_limit(before, after):
        reasons.append(limit)
    for path, words in (
        ("layout.devices", "{} devices instead of {}"),
        ("yours.seq_len", "sequences of {} tokens instead of {}"),
        ("yours.global_batch", "a global batch of {} instead of {}"),
        ("case.model.params", "a model of {} parameters instead of {}"),
    ):
        old, new = find(before, path), find(after, path)
        if old is not None and new is not None and old != new:
            reasons.append(words.format(show(new), show(old)))
    return tuple(reasons)


def compare_choices(before: Plan, after: Plan, reasons: tuple[str, ...]) -> Iterator[Change]:
    """By axis; why: what the new plan says of the old choice."""
    for prefix, old_part, new_part in (
        ("", before, after),
        ("infer: ", before.get("serving") or {}, after.get("serving") or {}),
    ):
        old, new = old_part.get("choice"), new_part.get("choice")
        if old is None or new is None:
            continue
        decisions = {decision["axis"]: decision for decision in new_part.get("decisions", ())}
        for axis in [*new, *(axis for axis in old if axis not in new)]:
            if old.get(axis) != new.get(axis):
                why = explain_choice(decisions.get(axis), old.get(axis)) or "; ".join(reasons)
                yield Change(about="choice", name=f"{prefix}{axis}", before=old.get(axis), after=new.get(axis), why=why)


def explain_choice(decision: Mapping[str, Any] | None, old: str | None) -> str:
    if decision is None:
        return ""
    rejection = next((rejected for rejected in decision["rejected"] if rejected["name"] == old), None)
    return f"{old}: {rejection['why']}" if rejection else decision["why"]


def compare_batches(before: Plan, after: Plan, reasons: tuple[str, ...]) -> Iterator[Change]:
    old, new = find(before, "batch.micro_batch"), find(after, "batch.micro_batch")
    if old is None or new is None:
        return
    if old != new:
        reasons = (*reasons, *explain_split(after, old)) or ("with the techniques that are chosen now",)
        yield Change(about="batch", name="micro-batch", before=show(old), after=show(new), why="; ".join(reasons))
    yield from differ(before, after, "batch.accumulation", "batch", "accumulation")


def explain_split(after: Plan, micro_batch: int) -> Iterator[str]:
    """What the new plan says of the old micro-batch."""
    split = next((s for s in after["batch"]["splits"] if s["micro_batch"] == micro_batch), None)
    if split is None:
        return
    if not split["fits"]:
        yield f"{micro_batch} would need {split['peak_memory_gib']:.1f} GiB"
    elif split["step_seconds"] > after["estimate"]["step_seconds"]:
        yield f"with {micro_batch} a step would take {split['step_seconds'] / after['estimate']['step_seconds'] - 1:.0%} longer"


def compare_costs(before: Plan, after: Plan) -> Iterator[Change]:
    """Predicted memory and speed."""
    for about, name, key, form in (
        ("memory", "peak memory (GiB)", "peak_memory_gib", "{:.2f}"),
        ("speed", "tokens/s", "tokens_per_second", "{:,.0f}"),
    ):
        old, new = find(before, f"estimate.{key}"), find(after, f"estimate.{key}")
        if old is not None and new is not None and abs(new - old) > NOTICED * abs(old):
            share = f"{new / old - 1:+.0%}" if old else ""
            yield Change(about=about, name=name, before=form.format(old), after=form.format(new), why=share)


def compare_runs(before: Plan, after: Plan) -> Iterator[Change]:
    yield from differ(before, after, "run.summary", "run", "run")
    if "evaluation" in before or "evaluation" in after:
        old, new = (describe_evaluation(plan.get("evaluation")) for plan in (before, after))
        if old != new:
            yield Change(about="run", name="evaluation", before=old, after=new)
    yield from differ(before, after, "saving.save_steps", "run", "steps between saves", find(after, "saving.why") or "")


def describe_evaluation(record: Plan | None) -> str:
    return f"of {record['rows']:,} rows every {record['interval']:,} steps" if record else "none"


def compare_requirements(before: Plan, after: Plan) -> Iterator[Change]:
    """Packages that the project installs."""
    if "requirements" not in before or "requirements" not in after:
        return
    old, new = (dict(line.partition("==")[::2] for line in plan["requirements"]) for plan in (before, after))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield Change(about="versions", name=name, before=old.get(name), after=new.get(name))


def compare_configs(before: Plan, after: Plan) -> Iterator[Change]:
    """Values of config.yaml that no line above is about."""
    old, new = (dict(flatten(plan.get("config", {}))) for plan in (before, after))
    if not old or not new:
        return
    for name in [*new, *(name for name in old if name not in new)]:
        if not {name, name.split(".")[0]} & COVERED and old.get(name) != new.get(name):
            values = [show(values[name]) if name in values else None for values in (old, new)]
            yield Change(about="config", name=f"config.yaml: {name}", before=values[0], after=values[1])


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from flatten(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def compare_notes(before: Plan, after: Plan) -> Iterator[Change]:
    if "notes" not in before or "notes" not in after:
        return
    old, new = ([note["text"] for note in plan["notes"]] for plan in (before, after))
    for text in new:
        if text not in old:
            yield Change(about="note", name="note", before=None, after=text)


HEADINGS = {
    "perfgen": "inputs", "machine": "inputs", "model": "inputs", "data": "inputs", "yours": "yours", "choice": "choice",
    "batch": "batch", "memory": "cost", "speed": "cost", "run": "run", "versions": "versions", "config": "config", "note": "notes",
}  # fmt: skip


def format_changes(changes: tuple[Change, ...]) -> list[str]:
    """Lines for a terminal: the heading before the first of its changes."""
    lines, last = [], ""
    for change in changes:
        heading = HEADINGS[change.about]
        lines.append(f"{heading if heading != last else '':9}{change}")
        last = heading
    return lines
