"""Nothing fits: by how much, and the nearest plans that do."""

from __future__ import annotations

from generator.decide.ladder import Ladder, build_ladder
from generator.decide.nearest import find_nearest
from generator.decide.shortfall import count_scarcest_gib, explain_scores, explain_unpacked_experts, is_host_short
from generator.decide.space import Space
from generator.decide.standing import explain_standstill
from generator.errors import NothingFits, PerfgenError


def refuse_space(space: Space) -> PerfgenError:
    """Nothing fits: by how much, with everything that saves memory switched on, and the nearest plans that do. Where no techniques
    can stand together, which pins rule it out."""
    nearest = find_nearest(space)
    if nearest is None:
        return explain_standstill(space) or NothingFits("no combination of techniques is possible here", "drop a --pin")
    ladder = build_ladder(space.case)
    case = space.case
    saving = ", ".join(t.name for t in nearest.members if not t.baseline)
    kind = case.workload.train if case.workload.mode == "train" else "inference"
    what = f"{case.model.name} ({kind}, {case.workload.seq_len} tokens)"
    devices = nearest.layout.devices
    where = f"{devices} x {case.device.name}" if devices > 1 else case.device.name
    needed, usable = count_scarcest_gib(space, nearest)
    figures = f"{usable:.1f} GiB are usable, {needed - usable:.1f} GiB short"
    if is_host_short(nearest):
        message = (
            f"{what} does not fit the memory of the host: the nearest plan ({saving}) needs {needed:.1f} GiB of it beside "
            f"{where}, {figures}"
        )
    else:
        message = f"{what} does not fit {where}: the smallest plan ({saving}) needs {needed:.1f} GiB, {figures}"
    causes = (explain_unpacked_experts(nearest), explain_scores(space, nearest))
    message = "; ".join((message, *(cause for cause in causes if cause)))
    return NothingFits(message, advise(space, ladder), ladder.rungs, list_unusable(space))


def list_unusable(space: Space) -> dict[str, str]:
    """Techniques that were not looked at, and why."""
    asked = {axis: space.case.workload.name_pin(axis, name) for axis, name in space.case.workload.pins}
    pinned = (axis for axis in space.axes if axis.name in asked)
    others = {t.id: f"you gave {asked[axis.name]}" for axis in pinned for t in axis.members}
    kept = {t.id for members in space.open.values() for t in members}
    return {name: why for name, why in {**others, **space.obstacles}.items() if name not in kept}


def advise(space: Space, ladder: Ladder) -> str | None:
    """What to change where no rung fits, and that there may be more rungs than are listed."""
    workload = space.case.workload
    if ladder.rungs:
        return "the search for plans that fit was cut short: there may be nearer ones" if ladder.is_cut else None
    larger = "a machine with more memory" if space.case.vendor.why_alone else "more devices, or larger ones"
    ways = ["a smaller model", larger]
    if workload.mode == "infer" and workload.concurrency > 1:
        ways.append("a smaller --concurrency")
    if workload.mode == "infer" and workload.new_tokens > workload.seq_len:
        ways.append("fewer --new-tokens")
    if workload.mode == "train" and workload.train != "full":
        ways.append("a smaller --lora-rank")
    if workload.pins:
        ways.append("fewer pins")
    looked = "the search for plans that fit was cut short" if ladder.is_cut else "no single change is enough"
    return f"{looked}; what may help: {', '.join(ways)}"
