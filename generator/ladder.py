"""When nothing fits: the nearest plans that do, each planned by the same engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from generator import stacks
from generator.candidates import Candidate, search, space
from generator.cost import CostModel
from generator.errors import UsageError
from generator.workload import Case, check
from hwdetect import catalog
from hwdetect.types import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One change that would make it fit, the option that asks for it, and what that plan costs."""

    change: str
    option: str
    best: Candidate


def ladder(case: Case, cost_model: Callable[[Case], CostModel]) -> tuple[Rung, ...]:
    """The user's own choices, changed one at a time; each rung fits. Empty when none helps."""
    rungs = []
    for change, option, changed in changes(case):
        try:
            check(changed.workload, changed.model)
            ranked = search(space(changed, cost_model(changed)))
        except UsageError:
            continue
        if ranked:
            rungs.append(Rung(change=change, option=option, best=ranked[0]))
    return tuple(first_of_each(rungs))


def first_of_each(rungs: list[Rung]) -> Iterator[Rung]:
    seen = set()
    for rung in rungs:
        kind = rung.option.split()[0]
        if kind not in seen or kind == "--train":
            seen.add(kind)
            yield rung


def changes(case: Case) -> Iterator[tuple[str, str, Case]]:
    workload = case.workload
    if workload.mode == "train":
        for train in ("lora", "qlora"):
            if train != workload.train and not workload.from_scratch:
                yield f"train {train.upper()} adapters", f"--train {train}", with_workload(case, train=train)
    length = workload.seq_len // 2
    while length >= 128:
        yield f"sequences of {length} tokens", f"--seq-len {length}", with_workload(case, seq_len=length)
        length //= 2
    for device in larger_devices(case):
        stack = stacks.load("train", stacks.cuda_build("train", device.compute_capability, None, device.name))
        bigger = replace(case, device=device, device_memory_bytes=device.memory_bytes, stack=stack)
        yield f"one {device.name}", f"--hardware 1x{device.id}", bigger


def with_workload(case: Case, **changed) -> Case:
    return replace(case, workload=replace(case.workload, **changed))


def larger_devices(case: Case) -> list[Device]:
    """Current NVIDIA boards with more memory, smallest first, one a size."""
    found: dict[int, Device] = {}
    for device in catalog.all_devices():
        enough = device.memory_bytes and device.memory_bytes > case.device_memory_bytes
        modern = device.compute_capability and tuple(map(int, device.compute_capability.split("."))) >= (8, 0)
        sold = device.vendor == "nvidia" and device.market is None and not device.unified_memory
        if sold and enough and modern:
            size = round(device.memory_bytes / 2**30)
            best = found.get(size)
            if best is None or (device.flops("bf16") or 0, device.id) > (best.flops("bf16") or 0, best.id):
                found[size] = device
    return [found[size] for size in sorted(found)]
