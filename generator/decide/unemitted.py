"""What a plan may leave open and a project may not."""

from __future__ import annotations

from dataclasses import replace

from generator.case.devices import describe_accelerators, find_board_vendor, group_equal_accelerators
from generator.case.sources import lacks_tokenizer
from generator.cost.of_case import build_cost_model
from generator.decide.device_count import choose_candidate
from generator.decide.ladder import build_ladder
from generator.decide.plan import Plan, Planned
from generator.decide.reasons import NOT_EMITTED
from generator.decide.space import open_space
from generator.errors import NotEmitted, SourceError, UsageError
from generator.figures import format_figure
from hwdetect.types import Hardware


def refuse_machine(hardware: Hardware | None) -> None:
    """Raises ``NotEmitted`` where no project is made for any of its devices, whatever the model and data: nobody need be asked for them."""
    if hardware is None:
        return
    boards = {board.index: board for board in hardware.boards}
    reasons: list[str] = []
    for used in group_equal_accelerators(hardware):
        vendor = find_board_vendor(boards[used[0].board]) if used else None
        if vendor is None:
            return
        device, _ = describe_accelerators(hardware, used)
        why = vendor.explain_unemitted(device)
        if why is None:
            return
        reasons.append(describe_unemitted(device.name, why))
    raise NotEmitted(reasons[0])


def describe_unemitted(name: str, why: str) -> str:
    return f"{name} is planned, and no project is made for it: {why}"


def refuse_device(plan: Plan) -> None:
    """Raises ``NotEmitted`` for a device that projects are not made for, in that device's own terms."""
    case = plan.case
    if why := case.explain_unemitted():
        raise NotEmitted(describe_unemitted(case.device.name, why))


def refuse_unemitted(plan: Plan) -> None:
    """Raises ``NotEmitted`` for a plan that no project can be made of, with the best one that can."""
    if not plan.unemitted:
        return
    names = {t.axis: t.id for t in plan.unemitted}
    reasons = {t.id: t.explain_unemitted(plan.case) for t in plan.unemitted}
    what = "; ".join(f"{name}: {NOT_EMITTED} ({why})" for name, why in reasons.items())
    workload = plan.case.workload
    pins = tuple(pin for pin in workload.pins if pin[0] not in names)
    free = replace(plan.case, workload=replace(workload, pins=pins))
    best = choose_candidate(open_space(free, build_cost_model(free)))
    if best is None or best.planned:
        raise NotEmitted(what, "nothing that can be emitted fits", ladder=build_ladder(plan.case).rungs)
    offer = " ".join(f"--pin {axis}={best.choice[axis]}" for axis in names)
    slower = best.estimate.step_seconds / plan.best.estimate.step_seconds
    raise NotEmitted(
        what,
        f"the best plan that can be emitted is {offer}: {format_figure(best.estimate.step_seconds)} s a step "
        f"({slower:.2f} times the time), {best.estimate.peak_memory_gib:.1f} GiB",
    )


def refuse_trainers(planned: Planned) -> None:
    """Raises ``UsageError`` for what only Trainer does, where the project has a loop of its own."""
    request, data = planned.work.request, planned.work.data
    framework = planned.plan.case.vendor.framework
    of_hub = data is not None and data.format == "hub"
    for option, hint, given in (
        (f"--report-to {request.report_to}", "leave it out", request.report_to != "none"),
        (f"--early-stopping {request.early_stopping}", "leave it out", request.early_stopping is not None),
        ("data of the hub", "give a file: --data FILE", of_hub),
        (f"--tokenizer {request.tokenizer}", "put it into the folder of the model", request.tokenizer is not None),
    ):
        if given:
            raise UsageError(f"{option}: the project that is made for {framework} does not read such", hint)


def check_emittable(planned: Planned) -> None:
    """Raises ``UsageError``, ``SourceError``, ``NotEmitted`` for a plan that no project can be made of."""
    refuse_device(planned.plan)
    refuse_unemitted(planned.plan)
    training = planned.work.request.mode == "train"
    if planned.plan.case.skeleton:
        refuse_trainers(planned)
    if planned.work.request.adapts and not planned.work.source.has_weights:
        raise SourceError(
            f"{planned.work.source.name} holds sizes only: there are no weights to adapt (--train {planned.work.request.train})",
            "give a folder with weights, or --model HUB_ID (with --config FILE where the hub cannot be asked); or --train full",
        )
    if training and lacks_tokenizer(planned.work):
        raise SourceError(f"{planned.work.source.name} has no tokenizer", "give one: --tokenizer FOLDER or hub id")
    if training and planned.work.data is None:
        raise UsageError("a training project needs data", "--data FILE, folder or hub id")
    if not training and not planned.work.source.has_weights:
        raise SourceError(
            f"{planned.work.source.name} holds sizes only: there is nothing to serve",
            "give a folder with weights, or a hub id",
        )
