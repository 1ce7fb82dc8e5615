"""Time, hours of devices and price of the whole run, from a step and what is paid once."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from generator.case.case import Case
from generator.case.defaults import count_steps
from generator.case.layout import Layout
from generator.decide.plan import Planned
from generator.emit.figures import round_floats
from generator.emit.plan_document import RunRecord
from generator.figures import format_figure
from hwdetect.cloud import Instance, Price, find_instance, list_instances

COUNT_BEFORE = re.compile(r"\s*(?:(\d+)\s*[x×](?!_)\s*)?(.+)", re.IGNORECASE | re.DOTALL)
"""NODESxNAME, as ``hwdetect.spec`` reads it."""


LEAST_USD = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyPrice:
    """US dollars an hour for what the run occupies. ``of`` says of what."""

    usd: float
    of: str
    price: Price


def describe_run(planned: Planned, held_rows: int = 0) -> RunRecord:
    """The whole run, ``held_rows`` of whose data are not trained on; null where it depends on steps that are not known."""
    plan, case = planned.plan, planned.plan.case
    packed = plan.best.execution.padding_free
    steps = count_steps(case.workload, planned.work.data, packed=packed, held_rows=held_rows)
    once = sum(technique.once_seconds(case) for technique in plan.best.members)
    step = plan.best.estimate.step_seconds
    seconds = None if steps is None else once + steps * step
    devices = plan.best.layout.devices
    hourly = find_hourly_price(planned.work.request.hardware, case, plan.best.layout)
    figures = {
        "steps": steps,
        "seconds_per_1000_steps": 1000 * step,
        "once_seconds": once,
        "seconds": seconds,
        "gpu_hours": None if seconds is None or case.on_cpu else seconds * devices / 3600,
        "gpu_hours_per_1000_steps": None if case.on_cpu else 1000 * step * devices / 3600,
        "usd_per_hour": hourly.usd if hourly else None,
        "usd": hourly.usd * seconds / 3600 if hourly and seconds is not None else None,
        "usd_per_1000_steps": hourly.usd * 1000 * step / 3600 if hourly else None,
        "price_of": hourly.of if hourly else None,
        "price_source": hourly.price.source if hourly else None,
        "price_read": hourly.price.read if hourly else None,
    }
    record = RunRecord(summary="", **round_floats(figures))
    return replace(record, summary=summarize_run(record, name_hours(case.vendor.title)))


def name_hours(accelerator: str) -> str:
    """``GPU-hours`` of an AMD GPU, ``NPU-hours`` of an Ascend NPU."""
    return f"{accelerator.split()[-1]}-hours"


def summarize_run(run: RunRecord, hours_name: str) -> str:
    """Time, hours of devices and price in words; those of 1,000 steps where their number is not known."""
    if run.steps is None or run.seconds is None:
        usd = run.usd_per_1000_steps
        words = [f"{format_duration(run.seconds_per_1000_steps)} for 1,000 steps, the number of steps is not known"]
    else:
        usd = run.usd
        words = [f"{format_duration(run.seconds)} for {run.steps:,} step{'s' if run.steps > 1 else ''}"]
        words += [f"of which {format_duration(run.once_seconds)} once"] if run.once_seconds else []
    hours = run.gpu_hours_per_1000_steps if run.steps is None else run.gpu_hours
    words += [f"{format_figure(hours)} {hours_name}"] if hours is not None else []
    if usd is not None:
        dollars = f"{usd:,.2f} US dollars" if usd >= LEAST_USD else "less than a cent"
        words.append(f"{dollars} ({run.usd_per_hour:,.2f} an hour: {run.price_of}, read on {run.price_read})")
    return ", ".join(words)


def format_duration(seconds: float) -> str:
    """In the largest unit of which there are two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{format_figure(seconds / length)} {unit}"
    return f"{seconds:.3g} s"


def is_joined(instance: Instance) -> bool:
    """Pods that reach each other at 100 Mbit/s are no nodes of one run; where nobody says the rate, they are."""
    return instance.network_bytes_per_s is None or instance.network_bytes_per_s >= 1e8


def has_whole_boards(case: Case) -> bool:
    """Whether nothing of the machine is a part of a board, of a share that may be unknown: nobody rents out such parts by the share."""
    boards = {board.index: board for board in case.hardware.boards}
    return all(
        a.compute_share in (None, 1.0) and a.profile is None and not boards[a.board].mig_enabled
        for a in case.hardware.accelerators
    ) and not any(board.virtualization == "VGPU" for board in boards.values())


def find_hourly_price(hardware: str | None, case: Case, layout: Layout) -> HourlyPrice | None:
    """The price of the named instance, all of it; else the lowest of the catalogue per device, for those of ``layout``, of the instances
    that have as many as it takes on a node: four machines of one chip are none in which four are linked."""
    match = COUNT_BEFORE.fullmatch(hardware or "")
    instance = find_instance(match[2]) if match else None
    if instance:
        if instance.price is None:
            return None
        of = f"{case.nodes} x {instance.name}" if case.nodes > 1 else instance.name
        return HourlyPrice(usd=instance.price.usd_per_hour * case.nodes, of=of, price=instance.price)
    if case.on_cpu or case.portable or not has_whole_boards(case):
        return None
    ours = [
        i
        for i in list_instances()
        if i.device == case.device.id and i.devices >= layout.per_node and (case.nodes == 1 or is_joined(i))
    ]
    priced = [(i.price.usd_per_hour / i.devices, i.name, i) for i in ours if i.price]
    each, name, instance = min(priced, default=(0.0, "", None))
    if instance is None or instance.price is None:
        return None
    return HourlyPrice(
        usd=each * layout.devices,
        of=f"{layout.devices} of the devices of {name}, the cheapest here",
        price=instance.price,
    )
