"""Nothing fits: by how much."""

from __future__ import annotations

from generator.decide.candidates import HEADROOM_SHARE
from generator.decide.search import find_smallest
from generator.decide.space import Space
from generator.errors import NothingFits


def explain_shortfall(room: Space) -> NothingFits:
    """Nothing fits: by how much, with everything that saves memory switched on."""
    least = find_smallest(room)
    if least is None:
        obstacles = "; ".join(f"{name}: {why}" for name, why in sorted(room.obstacles.items()))
        return NothingFits("no combination of techniques is possible here", obstacles)
    case, estimate = room.case, least.estimate
    usable = estimate.limit_gib * (1 - HEADROOM_SHARE)
    missing = estimate.peak_memory_gib - usable
    saved = ", ".join(t.name for t in least.members if not t.baseline)
    what = f"{case.model.name} ({case.workload.train if case.workload.mode == 'train' else 'inference'}, {case.workload.seq_len} tokens)"
    where = f"{least.layout.devices} x {case.device.name}" if least.layout.devices > 1 else case.device.name
    host, limit = sum(part.value for part in estimate.host_memory), estimate.host_limit_gib or 0.0
    if host > limit > 0 and host / limit >= estimate.fullness:
        return NothingFits(
            f"{what} does not fit the memory of the host: the nearest plan ({saved}) needs {host:.1f} GiB of it beside "
            f"{where}, {limit:.1f} GiB are usable, {host - limit:.1f} GiB short"
        )
    return NothingFits(
        f"{what} does not fit {where}: the smallest plan ({saved}) needs {estimate.peak_memory_gib:.1f} GiB, "
        f"{usable:.1f} GiB are usable, {missing:.1f} GiB short"
    )
