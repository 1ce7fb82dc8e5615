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
from collections.abc import Callable, Mapping, Sequence

from hwdetect.machine.protocol import Machine
from hwdetect.maker_tools import TOOLS, Rule, get_tool_of
from hwdetect.probes.notes import Notes
from hwdetect.probes.partial import number_accelerators
from hwdetect.types import Accelerator, Board


def apply_visibility(
    machine: Machine, accelerators: tuple[Accelerator, ...], boards: tuple[Board, ...], notes: Notes
) -> tuple[str | None, tuple[Accelerator, ...]]:
    """What the environment leaves of all makers' accelerators, and the first variable's value where one is set."""
    shown: str | None = None
    # where no board is seen, a variable of any maker may hide it
    makers = list(dict.fromkeys(board.vendor for board in boards)) or list(TOOLS)
    for maker in makers:
        mine = tuple(board for board in boards if board.vendor == maker)
        own = {board.index for board in mine}
        for rule, names in get_tool_of(maker).variables:
            values = [machine.get_variable(name) for name in names]
            # HIP takes an empty variable for one that is not set, where another can speak.
            value = next((v for v in values if v), next((v for v in values if v is not None), None))
            if value is None:
                continue
            shown = value if shown is None else shown
            if order := get_tool_of(maker).order:
                _note_doubtful_order(machine, value, mine, order, notes)
            kept = select(value, [a for a in accelerators if a.board in own], mine, rule)
            # Makers keep their order: the first one's devices come first, as they did before.
            before = tuple(a for a in accelerators if a.board not in own and a.board < min(own, default=0))
            after = tuple(a for a in accelerators if a.board not in own and a.board >= min(own, default=0))
            accelerators = number_accelerators(before + kept + after)
    return shown, accelerators


def _note_doubtful_order(
    machine: Machine, value: str, boards: Sequence[Board], order: tuple[str, str], notes: Notes
) -> None:
    """Boards are listed in bus order here; CUDA numbers unequal ones by its own idea of speed unless told otherwise."""
    name, wanted = order
    unequal = len({(board.device or board.name, board.memory_bytes) for board in boards}) > 1
    if unequal and re.match(r"\s*\d", value) and machine.get_variable(name) != wanted:
        notes.add(
            "software.visible_devices",
            name,
            f"the boards differ and CUDA numbers the fastest first, these are in bus order: set {name}={wanted}",
        )


def select(
    value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board], rule: Rule
) -> tuple[Accelerator, ...]:
    """The accelerators that ``value`` leaves, in its order, numbered anew."""
    return number_accelerators(RULES[rule](value, accelerators, boards))


def _select_by_cuda(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> list[Accelerator]:
    """Numbers of boards, or ids of boards or of MIG instances, as the first entry is."""
    first = value.strip()
    if first.startswith("MIG-"):
        return _select_by_uuid(value, "MIG-", accelerators, boards)[:1]  # a CUDA process can use one instance
    if first.startswith("GPU-"):
        return _select_by_uuid(value, "GPU-", accelerators, boards)
    return _select_by_number(value, accelerators, boards)


def _select_all_or_numbers(
    value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]
) -> list[Accelerator]:
    return list(accelerators) if value.strip() in ("all", "") else _select_by_number(value, accelerators, boards)


def _select_by_hip(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> list[Accelerator]:
    """What HIP leaves of those that ROCr has left: plain numbers or ids, up to the first that is none."""
    if not value:
        return list(accelerators)
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
    return chosen


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


def _select_by_mask(value: str, accelerators: Sequence[Accelerator], boards: Sequence[Board]) -> list[Accelerator]:
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


RULES: Mapping[Rule, Callable[[str, Sequence[Accelerator], Sequence[Board]], list[Accelerator]]] = {
    "cuda": _select_by_cuda,
    "rocr": _select_by_rocr,
    "hip": _select_by_hip,
    "level-zero": _select_by_mask,
    "numbers": _select_by_number,
    "numbers or all": _select_all_or_numbers,
}
"""How a variable's value is read, by the word that ``maker_tools.py`` has for it."""
