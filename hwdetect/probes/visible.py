"""``CUDA_VISIBLE_DEVICES`` and its like: the accelerators a process sees, in its order, by the rules of the runtime.

The rules are those that torch follows without asking the driver (torch/cuda/__init__.py, ``_parse_visible_devices``
and ``_transform_uuid_to_ordinals``), which reproduces the CUDA runtime: the list is read up to the first entry that
names nothing; an entry twice empties it; numbers are read like C's ``strtoul``, so ``0;rm`` is 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hwdetect.types import Accelerator, Board

# Runtimes of the makers; HIP reads CUDA's variable as well, after its own.
VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
    "habana": ("HABANA_VISIBLE_DEVICES",),
}


def select(value: str | None, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> tuple[Accelerator, ...]:
    """The accelerators that ``value`` leaves, in its order, numbered anew; all of them where it is not set."""
    if value is None:
        return tuple(accelerators)
    first = value.strip()
    if first.startswith("MIG-"):
        chosen = _by_uuid(value, "MIG-", accelerators, boards)[:1]  # a CUDA process can use one instance
    elif first.startswith("GPU-"):
        chosen = _by_uuid(value, "GPU-", accelerators, boards)
    else:
        chosen = _by_number(value, accelerators, boards)
    return tuple(replace(accelerator, index=i) for i, accelerator in enumerate(chosen))


def _by_number(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> list[Accelerator]:
    """Numbers count boards; a board in MIG mode stands for its first instance."""
    order = [board.index for board in boards if any(a.board == board.index for a in accelerators)]
    partitioned = any(a.profile for a in accelerators if not _mig(a))
    units: list[Accelerator] = (
        list(accelerators)  # partitions of AMD and Intel boards are devices of their own
        if partitioned
        else [next(a for a in accelerators if a.board == index) for index in order]
    )
    chosen: list[Accelerator] = []
    seen: set[int] = set()
    for entry in value.split(","):
        number = _strtoul(entry.strip())
        if number is None or number < 0:
            break
        if number in seen:
            return []
        seen.add(number)
        if number >= len(units):
            break
        chosen.append(units[number])
    return chosen


def _mig(accelerator: Accelerator) -> bool:
    return accelerator.gpu_instance is not None or (accelerator.uuid or "").startswith("MIG-")


def _strtoul(text: str) -> int | None:
    match = re.match(r"[+-]?[0-9]+", text)
    return int(match.group(0)) if match and len(match.group(0)) < 12 else None


def _by_uuid(
    value: str, prefix: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]
) -> list[Accelerator]:
    chosen: list[Accelerator] = []
    for entry in value.split(","):
        name = entry.strip()
        if not name.startswith(prefix):
            break
        found = _instance(name, accelerators, boards) if prefix == "MIG-" else None
        if found is None:
            found = _unique(name, accelerators, boards)
        if found is None:
            break
        if found in chosen:
            return []
        chosen.append(found)
    return chosen


def _unique(name: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> Accelerator | None:
    """The one accelerator (or board in MIG mode: its first instance) whose id begins with ``name``."""
    direct = [a for a in accelerators if a.uuid and a.uuid.startswith(name)]
    if not direct:
        holders = [b.index for b in boards if b.uuid and b.uuid.startswith(name)]
        direct = [a for a in accelerators if holders == [a.board]][:1]
    return direct[0] if len(direct) == 1 else None


def _instance(name: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> Accelerator | None:
    """The old form of an id, ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``."""
    match = re.fullmatch(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d{1,3})/(\d{1,3})", name)
    if match is None:
        return None
    holders = {board.index for board in boards if board.uuid == match.group(1)}
    wanted = int(match.group(2)), int(match.group(3))
    fits = [a for a in accelerators if a.board in holders and (a.gpu_instance, a.compute_instance) == wanted]
    return fits[0] if len(fits) == 1 else None
