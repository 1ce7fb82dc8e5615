"""Nothing fits: by how much, and the nearest plans that do."""

from __future__ import annotations

from generator.decide.ladder import build_ladder
from generator.decide.nearest import find_nearest
from generator.decide.shortfall import count_scarcest_gib, is_host_short
from generator.decide.space import Space
from generator.errors import NothingFits


def refuse_space(space: Space) -> NothingFits:
    """Nothing fits: by how much, with everything that saves memory switched on, and the nearest plans that do."""
    ladder = build_ladder(space.case)
    nearest = find_nearest(space)
    if nearest is None:
        obstacles = "; ".join(f"{name}: {why}" for name, why in sorted(space.obstacles.items()))
        return NothingFits("no combination of techniques is possible here", obstacles, ladder)
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
    return NothingFits(message, None, ladder)
