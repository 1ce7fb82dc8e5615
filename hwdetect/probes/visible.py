"""``CUDA_VISIBLE_DEVICES`` and its like: the accelerators a process sees, in its order, by the rules of each runtime.

CUDA's rules are those that torch follows without asking the driver (torch/cuda/__init__.py, ``_parse_visible_devices``
and ``_transform_uuid_to_ordinals``), which reproduces the CUDA runtime: the list is read up to the first entry that
names nothing; an entry twice empties it; numbers are read like C's ``strtoul``, so ``0;rm`` is 0.
ROCr (core/runtime/amd_filter_device.cpp of ROCR-Runtime) takes whole numbers and ids and stops at what it has seen; HIP
(rocclr/device/rocm/rocdevice.cpp of ROCm/clr) passes over what it has seen, and an empty variable means nothing to it.
Level Zero: https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.partial import number_accelerators
from hwdetect.types import Accelerator, Board

# For each maker the variables that are applied one after the other; of a group the first one that is set counts.
# HIP reads CUDA's variable only where its own says nothing, and counts what ROCr has left.
VARIABLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "intel": (("ZE_AFFINITY_MASK",),),
    "habana": (("HABANA_VISIBLE_DEVICES",),),
    "google": (("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),),
    "huawei": (("ASCEND_RT_VISIBLE_DEVICES",),),
}


def apply_visibility(
    machine: Machine, accelerators: tuple[Accelerator, ...], boards: tuple[Board, ...], notes: Notes
) -> tuple[str | None, tuple[Accelerator, ...]]:
    """What the environment leaves of all makers' accelerators, and the first variable's value where one is set."""
    shown: str | None = None
    makers = list(dict.fromkeys(board.vendor for board in boards)) or ["nvidia"]
    for maker in makers:
        mine = tuple(board for board in boards if board.vendor == maker)
        own = {board.index for board in mine}
        for group in VARIABLES.get(maker, ()):
            values = [machine.get_variable(name) for name in group]
            # HIP takes an empty variable for one that is not set, where another can speak.
            value = next((v for v in values if v), next((v for v in values if v is not None), None))
            if value is None:
                continue
            shown = value if shown is None else shown
            if maker == "nvidia":
                _note_doubtful_order(machine, value, mine, notes)
            choose = select_by_hip if maker == "amd" and group != VARIABLES["amd"][0] else select
            kept = choose(value, [a for a in accelerators if a.board in own], mine)
            # Makers keep their order: the first one's devices come first, as they did before.
            before = tuple(a for a in accelerators if a.board not in own and a.board < min(own, default=0))
            after = tuple(a for a in accelerators if a.board not in own and a.board >= min(own, default=0))
            accelerators = number_accelerators(before + kept + after)
    return shown, accelerators


def _note_doubtful_order(machine: Machine, value: str, boards: Sequence[Board], notes: Notes) -> None:
    """Boards are listed in bus order here; CUDA numbers unequal ones by its own idea of speed unless told otherwise."""
    unequal = len({(board.device or board.name, board.memory_bytes) for board in boards}) > 1
    if unequal and re.match(r"\s*\d", value) and machine.get_variable("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.add(
            "software.visible_devices",
            "CUDA_DEVICE_ORDER",
            "the boards differ and CUDA numbers the fastest first, these are in bus order: set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )


def select(value: str | None, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> tuple[Accelerator, ...]:
    """The accelerators that ``value`` leaves, in its order, numbered anew; all of them where it is not set."""
    if value is None:
        return tuple(accelerators)
    maker = boards[0].vendor if boards else "nvidia"
    first = value.strip()
    if maker == "intel":
        chosen = _select_by_mask(value, accelerators)
    elif maker == "amd":
        chosen = _select_by_rocr(value, accelerators, boards)
    elif maker == "habana" and first in ("all", ""):
        chosen = list(accelerators)
    elif first.startswith("MIG-"):
        chosen = _select_by_uuid(value, "MIG-", accelerators, boards)[:1]  # a CUDA process can use one instance
    elif first.startswith("GPU-"):
        chosen = _select_by_uuid(value, "GPU-", accelerators, boards)
    else:
        chosen = _select_by_number(value, accelerators, boards)
    return number_accelerators(chosen)


def select_by_hip(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> tuple[Accelerator, ...]:
    """What HIP leaves of those that ROCr has left: plain numbers or ids, up to the first that is none."""
    if not value:
        return number_accelerators(accelerators)
    chosen: list[Accelerator] = []
    for entry in value.split(","):
        if "GPU-" in entry:
            accelerator = next((a for a in accelerators if entry in (_get_amd_id(a, boards) or "")), None)
        else:
            number = int(entry) if re.fullmatch(r"0|[1-9][0-9]{0,5}", entry) else len(accelerators)
            accelerator = accelerators[number] if number < len(accelerators) else None
        if accelerator is None:
            break
        if accelerator not in chosen:
            chosen.append(accelerator)
    return number_accelerators(chosen)


def _select_by_rocr(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> list[Accelerator]:
    """Numbers (also ``0x1``) and ids or their beginnings side by side, up to the first that is none or was there."""
    chosen: list[Accelerator] = []
    for entry in value.split(","):
        accelerator = None
        if entry[:1] in ("G", "g"):
            fits = [a for a in accelerators if (_get_amd_id(a, boards) or "").upper().startswith(entry.upper())]
            accelerator = fits[0] if len(fits) == 1 and 5 <= len(entry) <= 20 else None
        elif re.fullmatch(r"\s*(0[xX][0-9a-fA-F]{1,6}|0[0-7]{0,6}|[1-9][0-9]{0,6})", entry):
            digits = entry.strip().lower()
            base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
            number = int(digits, base)
            accelerator = accelerators[number] if number < len(accelerators) else None
        if accelerator is None or accelerator in chosen:
            break
        chosen.append(accelerator)
    return chosen


def _get_amd_id(accelerator: Accelerator, boards: Sequence[Board]) -> str | None:
    return accelerator.uuid or next((b.uuid for b in boards if b.index == accelerator.board), None)


def _select_by_number(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> list[Accelerator]:
    """Numbers count boards; a board in MIG mode stands for its first instance."""
    order = [board.index for board in boards if any(a.board == board.index for a in accelerators)]
    units = [next(a for a in accelerators if a.board == index) for index in order]
    chosen: list[Accelerator] = []
    used: set[int] = set()
    for entry in value.split(","):
        number = _parse_strtoul(entry.strip())
        if number is None or number < 0:
            break
        if number in used:
            return []
        used.add(number)
        if number >= len(units):
            break
        chosen.append(units[number])
    return chosen


def _select_by_mask(value: str, accelerators: Sequence[Accelerator]) -> list[Accelerator]:
    """``0,2``, and ``1.0`` for one tile of a card that counts as a whole; in the devices' order, whatever the mask's.

    What names nothing is passed over. Tiles are devices of their own where the hierarchy is flat: then ``1.0`` is none.
    """
    wanted = set()
    for entry in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\.(\d{1,2}))?\s*", entry)
        if match and (match.group(2) is None or not any(a.profile for a in accelerators)):
            wanted.add(int(match.group(1)))
    return [accelerator for place, accelerator in enumerate(accelerators) if place in wanted]


def _parse_strtoul(text: str) -> int | None:
    match = re.match(r"[+-]?[0-9]+", text)
    return int(match.group(0)) if match and len(match.group(0)) < 12 else None


def _select_by_uuid(
    value: str, prefix: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]
) -> list[Accelerator]:
    chosen: list[Accelerator] = []
    for entry in value.split(","):
        name = entry.strip()
        if not name.startswith(prefix):
            break
        accelerator = _find_instance(name, accelerators, boards) if prefix == "MIG-" else None
        if accelerator is None:
            accelerator = _find_unique(name, accelerators, boards)
        if accelerator is None:
            break
        if accelerator in chosen:
            return []
        chosen.append(accelerator)
    return chosen


def _find_unique(name: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> Accelerator | None:
    """The one accelerator (or board in MIG mode: its first instance) whose id begins with ``name``."""
    name = name.lower()
    direct = [a for a in accelerators if a.uuid and a.uuid.lower().startswith(name)]
    if not direct:
        holders = [b.index for b in boards if b.uuid and b.uuid.lower().startswith(name)]
        direct = [a for a in accelerators if holders == [a.board]][:1]
    return direct[0] if len(direct) == 1 else None


def _find_instance(name: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> Accelerator | None:
    """The old form of an id, ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``."""
    match = re.fullmatch(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d{1,3})/(\d{1,3})", name)
    if match is None:
        return None
    holders = {board.index for board in boards if (board.uuid or "").lower() == match.group(1).lower()}
    wanted = int(match.group(2)), int(match.group(3))
    fits = [a for a in accelerators if a.board in holders and (a.gpu_instance, a.compute_instance) == wanted]
    return fits[0] if len(fits) == 1 else None
