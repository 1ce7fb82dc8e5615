"""What a reader of the plan must know about its inputs and devices."""

from __future__ import annotations

from generator.case.case import Case
from generator.case.defaults import DEFAULT_SEQ_LEN
from generator.case.request import Request
from generator.case.sources import Work
from generator.case.workload import Workload
from generator.decide.plan import Plan
from generator.model import ModelSpec

BUSY = 0.95
"""Less free memory than this share is worth a word: an idle board keeps 1 to 4 % for itself (recordings of nvidia-smi)."""


def note_clamped_length(request: Request, workload: Workload, spec: ModelSpec) -> tuple[str, ...]:
    usual = DEFAULT_SEQ_LEN.get(request.task, 2048)
    if request.seq_len or workload.seq_len == usual:
        return ()
    return (f"seq_len is {workload.seq_len}, all the positions that {spec.name} has; the usual is {usual}",)


def note_busy_device(case: Case) -> tuple[str, ...]:
    """The plan is for the whole device; what other processes hold now is said."""
    if not case.hardware.accelerators or case.on_cpu:
        return ()
    first = next(a for a in case.hardware.accelerators if a.index == case.accelerators[0])
    if first.free_memory_bytes is None or not first.memory_bytes or first.free_memory_bytes > BUSY * first.memory_bytes:
        return ()
    free, whole = first.free_memory_bytes / 2**30, first.memory_bytes / 2**30
    return (
        f"only {free:.1f} of {whole:.1f} GiB of {case.device.name} are free now: the plan is for all of it, free it before a run",
    )


def explain_unused_devices(plan: Plan) -> tuple[str, ...]:
    """How many of the accelerators are used, and why not all."""
    case, layout = plan.case, plan.best.layout
    have = len(case.hardware.accelerators) * case.nodes
    if case.on_cpu or have <= layout.devices:
        return ()
    first = f"uses {layout.devices} of your {have} accelerators"
    if any(a.profile and a.index in case.accelerators for a in case.hardware.accelerators):
        return (f"{first}: one job cannot join MIG instances",)
    if layout.devices == case.devices:
        return (f"{first}: the others are of another kind",)
    return (f"{first}: {why_not_more_devices(plan)}",)


def why_not_more_devices(plan: Plan) -> str:
    """Why more devices are not worth it."""
    case = plan.case
    batch = case.workload.global_batch
    if case.workload.mode == "train" and batch % case.devices:
        return f"a global batch of {batch} cannot be divided evenly over more of them as fast"
    if case.workload.mode == "infer":
        return "more would not answer faster"
    return f"with more, the exchange between them costs more than they compute ({case.devices} were costed)"


def note_case(case: Case) -> tuple[str, ...]:
    """What a reader of the plan must know about its inputs."""
    notes = [f"{n.field}: {n.why}" for n in case.hardware.notes if n.who == "spec"]
    notes.extend(note_busy_device(case))
    if case.device.basis == "assumed" and case.device.sources:
        notes.append(f"rates of {case.device.name} are {case.device.basis}: {case.device.sources[0][1]}")
    notes.extend(case.model.notes)
    return tuple(notes)


def collect_notes(work: Work, plan: Plan) -> tuple[str, ...]:
    """What is said beside the plan: of the machine, the devices used, and a length that was cut."""
    clamped = note_clamped_length(work.request, work.workload, work.spec)
    return (*note_case(plan.case), *explain_unused_devices(plan), *clamped)
