"""When nothing fits: the nearest plans that do, each planned by the same engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from generator.case.case import Case
from generator.case.devices import make_case
from generator.case.vendors import Vendor, find_vendor
from generator.case.workload import TRAINED, check_workload
from generator.cost.bounds import NEUTRAL
from generator.cost.of_case import build_cost_model
from generator.decide.candidates import Candidate
from generator.decide.device_count import choose_candidate
from generator.decide.space import open_space, rate_risk
from generator.errors import UsageError
from generator.techniques.base import Technique, is_asked_for, list_axes
from hwdetect import catalog
from hwdetect.spec import parse_spec
from hwdetect.types import Device

MOST_BOARDS = 8
"""in a machine that is sold"""
TRAINED_IN_WORDS = {"lora": "train LoRA adapters", "qlora": "train LoRA adapters on 4-bit weights"}

Change = tuple[str, str, Case]
"""What changes, the option that asks for it, and the changed case."""


MOST_ASKED = 12_000
"""Questions to the cost model that looking for rungs may take: one to two seconds of one core (benchmarks/results/fuzz.json has
the times). A clock would make two answers of one input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One change that would make it fit, the option that asks for it, and what that plan costs. ``technique`` is what it allows,
    where it allows one."""

    change: str
    option: str
    best: Candidate
    technique: str | None = None


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs that fit. ``is_cut``: others, or milder ones, may be left: looking for all would have taken too long."""

    rungs: tuple[Rung, ...]
    is_cut: bool


@dataclass(slots=True)
class Budget:
    """What is left of ``MOST_ASKED``, and whether something was left out for it."""

    left: int = MOST_ASKED
    is_cut: bool = False

    def allows_more(self) -> bool:
        self.is_cut |= self.left <= 0
        return self.left > 0


def build_ladder(case: Case, budget: Budget | None = None) -> Ladder:
    """What takes a word of the user's, then the user's own choices, changed one at a time; each rung fits. Empty when none
    helps."""
    budget = budget or Budget()
    rungs: list[Rung | None] = [*list_allowances(case, budget)]
    rungs.append(find_mildest(list(list_smaller_batches(case)), budget))
    rungs += [make_rung(change, budget) for change in keep_emittable(case, list_smaller_trainings(case))]
    others = (list_fewer(case), list_shorter(case), list_more(case), list_larger(case))
    left = [keep_emittable(case, changes) for changes in others]
    rungs += [find_mildest(changes, budget) for changes in left]
    if budget.is_cut and not any(rungs):  # what was looked at first took it all: one of the rest, rather than none
        for changes in left:
            again = Budget(MOST_ASKED // len(left))
            if changes and (rung := find_mildest([changes[-1]], again)):
                rungs.append(find_mildest(changes, again) or rung)
                break
    return Ladder(tuple(rung for rung in rungs if rung), budget.is_cut)


def keep_emittable(case: Case, changes: Iterable[Change]) -> list[Change]:
    """Without those of which no project can be made, where one can be made of ``case``: on a TPU, LoRA."""
    makes_none = case.explain_unemitted() is not None
    return [change for change in changes if makes_none or change[2].explain_unemitted() is None]


def make_rung(change: Change, budget: Budget) -> Rung | None:
    """The plan of a changed case; ``None`` where it does not fit, no project can be made of it, or nothing is left to look."""
    what, option, changed = change
    if not budget.allows_more():
        return None
    try:
        check_workload(changed.workload, changed.model)
        space = open_space(changed, build_cost_model(changed))
    except UsageError:
        return None
    best = choose_candidate(space)
    budget.left -= space.asked
    return Rung(change=what, option=option, best=best) if best and not best.planned else None


def find_mildest(changes: list[Change], budget: Budget) -> Rung | None:
    """The mildest change that fits, by bisection: each change saves more (or offers more) than the one before."""
    low, high, best = 0, len(changes), None
    while low < high and budget.allows_more():
        middle = (low + high) // 2
        rung = make_rung(changes[middle], budget)
        if rung:
            best, high = rung, middle
        else:
            low = middle + 1
    return best


def list_allowances(case: Case, budget: Budget) -> list[Rung]:
    """Techniques that are taken on request only, and with which it fits: those of the least risk that any takes."""
    rungs: list[Rung] = []
    risk = None
    for technique in list_unasked(case):
        if risk is not None and technique.quality > risk:
            break
        if rung := find_mildest(list(list_allowed(case, technique)), budget):
            others = [t.quality_note for t in rung.best.members if t.id != technique.id and rate_risk(t, case)]
            rungs.append(replace(rung, technique=technique.id, change="; ".join([rung.change, *others])))
            risk = technique.quality
    return rungs


def list_unasked(case: Case) -> list[Technique]:
    """What could make room here if the user asked for it, the least risk first; not where they asked for another of the axis."""
    pinned = {axis for axis, _ in case.workload.pins}
    free = [axis for axis in list_axes() if axis.name not in pinned]
    axes = (axis for axis in free if not any(is_asked_for(t, case) for t in axis.members))
    members = [t for axis in axes for t in axis.for_mode(case.workload.mode) if t.request_only]
    usable = [
        t
        for t in members
        if not t.explain_unemitted(case) and not t.obstacle(case) and not t.effects(case).keys() <= NEUTRAL
    ]
    return sorted(usable, key=lambda t: (t.quality, t.id))


def list_allowed(case: Case, technique: Technique) -> Iterator[Change]:
    """The case with ``technique`` allowed; what cannot accumulate may need a smaller global batch too."""
    allowed = change_workload(case, allow=(*case.workload.allow, technique.id))
    yield technique.request_only, f"--allow {technique.id}", allowed
    if not technique.accumulates:
        for _, option, smaller in halve_batch(allowed, technique):
            what = f"{technique.request_only}, and nothing is accumulated"
            yield what, f"--allow {technique.id} {option}", smaller


def list_smaller_batches(case: Case) -> Iterator[Change]:
    """Where the user asked for what cannot accumulate."""
    asked = (t for axis in list_axes() for t in axis.members if is_asked_for(t, case))
    for technique in asked:
        if not technique.accumulates:
            yield from halve_batch(case, technique)


def halve_batch(case: Case, technique: Technique) -> Iterator[Change]:
    batch = case.workload.global_batch // 2
    while batch:
        what = f"{technique.name} cannot accumulate: the micro-batch is the whole batch"
        yield what, f"--global-batch {batch}", change_workload(case, global_batch=batch)
        batch //= 2


def list_smaller_trainings(case: Case) -> Iterator[Change]:
    workload = case.workload
    if workload.mode == "train" and not workload.from_scratch:
        for train in TRAINED[TRAINED.index(workload.train) + 1 :]:
            yield TRAINED_IN_WORDS[train], f"--train {train}", change_workload(case, train=train)


def list_fewer(case: Case) -> Iterator[Change]:
    """Prompts that are answered at a time."""
    count = case.workload.concurrency // 2 if case.workload.mode == "infer" else 0
    while count:
        yield f"{count} at a time", f"--concurrency {count}", change_workload(case, concurrency=count)
        count //= 2


def list_shorter(case: Case) -> Iterator[Change]:
    length, option = case.workload.seq_len // 2, case.workload.length_option
    what = "prompts" if case.workload.mode == "infer" else "sequences"
    while length >= 128:
        yield f"{what} of {length} tokens", f"{option} {length}", replace(case, workload=case.workload.cut(length))
        length //= 2


def list_more(case: Case) -> Iterator[Change]:
    """Two, four, eight of the same board in one machine, or machines of the one that has no room for a second."""
    one = case.nodes == 1 and not case.vendor.why_alone
    known = one and case.device.id in {device.id for device in catalog.list_devices()}
    count = 2 * case.devices_per_node
    while known and not case.on_cpu and count <= MOST_BOARDS:
        spec, what = f"{count}x{case.device.id}", f"{count} {case.device.name}"
        if case.device.is_alone:
            spec, what = f"{count}x1x{case.device.id}", f"{count} machines with one {case.device.name} each"
        yield what, *describe_machine(case, spec)
        count *= 2


def list_larger(case: Case) -> Iterator[Change]:
    for device in list_larger_devices(case):
        each = f"{case.devices_per_node}x{device.id}"
        spec = each if case.nodes == 1 else f"{case.nodes}x{each}"
        yield f"{'one' if case.devices == 1 else case.devices} {device.name}", *describe_machine(case, spec)


def describe_machine(case: Case, spec: str) -> tuple[str, Case]:
    """The option that asks for another machine, and the case on it: what the text leaves open is assumed as it is there."""
    hardware = parse_spec(spec)
    return f"--hardware {spec}", make_case(hardware, hardware.accelerators, case.model, case.workload)


def change_workload(case: Case, **changed) -> Case:
    return replace(case, workload=replace(case.workload, **changed))


def list_larger_devices(case: Case) -> list[Device]:
    """Current boards with more memory, smallest first, one per size: of the same vendor, for a CPU of the recommended ones."""
    by_size: dict[int, Device] = {}
    for device in catalog.list_devices():
        vendor = find_vendor(device.vendor, device.kind)
        alike = vendor is not None and (is_offered(vendor, case) if case.on_cpu else vendor is case.vendor)
        enough = alike and vendor.reach_memory(device, device.memory_bytes or 0) > case.device_memory_bytes
        modern = alike and vendor.explain_missing("bf16", device) is None
        sold = device.market is None and not device.unified_memory
        if sold and enough and modern:
            size = round((device.memory_bytes or 0) / 2**30)
            best = by_size.get(size)
            if best is None or (device.flops("bf16") or 0, device.id) > (best.flops("bf16") or 0, best.id):
                by_size[size] = device
    return [by_size[size] for size in sorted(by_size)]


def is_offered(vendor: Vendor, case: Case) -> bool:
    """Whether a CPU that is too small may be told of it: a framework that was asked for must be its own."""
    return vendor.recommended and case.workload.framework in (None, vendor.framework)
