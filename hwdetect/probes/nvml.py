"""NVIDIA boards through NVML. Every call may fail with any of NVML's codes: then that field is ``None`` with a note."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from dataclasses import field as made_by

from hwdetect.machine import Machine
from hwdetect.probes import pci
from hwdetect.probes.found import Found, numbered, usable
from hwdetect.probes.nvidia_words import NO_DEDICATED_MEMORY
from hwdetect.probes.nvml_links import read_links, read_nvlinks
from hwdetect.probes.reading import Notes, squeeze
from hwdetect.types import Accelerator, Board, Pcie, Software

# Codes that say something of the board as a whole (nvml.h, nvmlReturn_t).
STATES = {
    4: "no-permission",
    8: "insufficient-power",
    11: "irq-issue",
    14: "corrupted-inforom",
    15: "lost",
    16: "reset-required",
    17: "blocked-by-system",
}
ATTRIBUTE_STATES = frozenset({8, 11, 14, 15, 16})  # a refused or unsupported attribute says nothing of the board
COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
VIRTUALIZATION = {0: None, 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell",
}  # fmt: skip
# nvmlClocksEventReasons bits; idle and what the user set are no faults but are told.
THROTTLE = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
MAX_BOARDS = 1024


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that gave no value: NVML's code (``None`` where the binding itself failed) and words."""

    code: int | None
    why: str


class Nvml:
    """Asks one function at a time; remembers the codes that concern a whole board."""

    def __init__(self, module, notes: Notes):
        self.module, self.notes = module, notes
        self.states: dict[int, str] = {}

    def ask(self, name: str, *arguments):
        """The value, or ``Refused``. Never raises for anything that the library or its binding does."""
        function: Callable | None = getattr(self.module, name, None)  # older bindings lack newer functions
        if function is None:
            return Refused(None, "the binding does not know this call")
        try:
            return function(*arguments)
        except self.module.NVMLError as error:
            code = getattr(error, "value", None)
            return Refused(code, f"NVML code {code} ({CODES.get(code, 'unknown')})")
        except (UnicodeDecodeError, TypeError, ValueError, AttributeError, OSError) as error:
            return Refused(None, f"{type(error).__name__}: {error}")

    def field(self, board: int, field: str, name: str, *arguments):
        """The value for a field of a board, or ``None`` with a note."""
        answer = self.ask(name, *arguments)
        if not isinstance(answer, Refused):
            return answer
        if answer.code in ATTRIBUTE_STATES:
            self.states.setdefault(board, STATES[answer.code])
        self.notes.add(f"boards.{board}.{field}", name, answer.why)
        return None


# nvmlReturn_t of nvml.h: the 31 codes besides success.
CODES = {
    1: "uninitialized", 2: "invalid argument", 3: "not supported", 4: "no permission", 5: "already initialized",
    6: "not found", 7: "insufficient size", 8: "insufficient power", 9: "driver not loaded", 10: "timeout",
    11: "interrupt request issue", 12: "library not found", 13: "function not found", 14: "corrupted infoROM",
    15: "GPU is lost", 16: "GPU requires reset", 17: "blocked by the operating system",
    18: "driver and library versions differ", 19: "in use", 20: "insufficient memory", 21: "no data",
    22: "vGPU does not support ECC", 23: "insufficient resources", 24: "frequency not supported",
    25: "argument version mismatch", 26: "deprecated", 27: "not ready", 28: "GPU not found", 29: "invalid state",
    30: "reset type not supported", 999: "unknown error",
}  # fmt: skip


@dataclass(slots=True)
class Reading:
    """Filled board by board, so that what was read before a hang is not lost."""

    boards: list[Board]
    accelerators: list[Accelerator]
    software: Software = made_by(default_factory=Software)
    after_each_board: Callable[[], None] = lambda: None


def read_nvml(machine: Machine, module, notes: Notes, reading: Reading) -> Found | None:
    """All boards; ``None`` where NVML cannot be started or counts no board (a note says why)."""
    nvml = Nvml(module, notes)
    started = nvml.ask("nvmlInit")
    if isinstance(started, Refused):
        notes.add("boards", "nvmlInit", started.why)
        return None
    try:
        return _read(machine, nvml, notes, reading)
    finally:
        nvml.ask("nvmlShutdown")


def _read(machine: Machine, nvml: Nvml, notes: Notes, reading: Reading) -> Found | None:
    driver, cuda = nvml.ask("nvmlSystemGetDriverVersion"), nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
    for field, answer in (("driver", driver), ("cuda_driver", cuda)):
        if isinstance(answer, Refused):
            notes.add(f"software.{field}", "NVML", answer.why)
    reading.software = Software(driver=_text(_or_none(driver)), cuda_driver=_cuda(_or_none(cuda)))
    count = nvml.ask("nvmlDeviceGetCount")
    if isinstance(count, Refused) or not isinstance(count, int):
        notes.add("boards", "nvmlDeviceGetCount", count.why if isinstance(count, Refused) else f"answers {count!r}")
        return Found(software=reading.software)
    handles: dict[int, object] = {}
    for index in range(min(count, MAX_BOARDS)):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if isinstance(handle, Refused):
            notes.add(f"boards.{index}", "nvmlDeviceGetHandleByIndex", handle.why)
            state = STATES.get(handle.code or 0, "unreadable")
            reading.boards.append(Board(index=index, vendor="nvidia", state=state))
            continue
        handles[index] = handle
        board = _board(machine, nvml, index, handle)
        reading.boards.append(board)
        reading.accelerators += _accelerators(nvml, board, handle, notes)
        reading.after_each_board()
    boards = read_nvlinks(nvml, tuple(reading.boards), handles)
    boards = tuple(replace(b, state=nvml.states.get(b.index, b.state)) for b in boards)
    healthy = {b.index for b in boards if usable(b)}
    return Found(
        boards=boards,
        accelerators=numbered(tuple(a for a in reading.accelerators if a.board in healthy)),
        links=read_links(nvml, boards, handles),
        software=reading.software,
    )


def _or_none(answer):
    return None if isinstance(answer, Refused) else answer


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return squeeze(value) if isinstance(value, str) else None


def _cuda(version: object) -> str | None:
    """``13.1`` from 13010."""
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) and version > 0 else None


def _count(value: object) -> int | None:
    """A positive whole number; zero is no reading of a size or a limit."""
    return value if isinstance(value, int) and value > 0 else None


def _watts(value: object) -> float | None:
    return value / 1000 if isinstance(value, int) and value > 0 else None


def _board(machine: Machine, nvml: Nvml, index: int, handle: object) -> Board:
    def get(field: str, name: str, *arguments):
        return nvml.field(index, field, name, handle, *arguments)

    name = _text(get("name", "nvmlDeviceGetName"))
    memory = get("memory_bytes", "nvmlDeviceGetMemoryInfo")
    total = _count(getattr(memory, "total", None))
    where = get("pci_address", "nvmlDeviceGetPciInfo")
    address, pci_id = pci_address(where), _pci_id(where)
    capability = get("compute_capability", "nvmlDeviceGetCudaComputeCapability")
    mig, ecc = get("mig_enabled", "nvmlDeviceGetMigMode"), get("ecc_enabled", "nvmlDeviceGetEccMode")
    persistence = get("persistence", "nvmlDeviceGetPersistenceMode")
    errors = get("ecc_errors", "nvmlDeviceGetTotalEccErrors", 1, 0) if _first(ecc) == 1 else None
    temperature = get("temperature_c", "nvmlDeviceGetTemperature", 0)
    c2c = get("c2c", "nvmlDeviceGetC2cModeInfoV")
    return Board(
        index=index,
        vendor="nvidia",
        name=name,
        uuid=_text(get("uuid", "nvmlDeviceGetUUID")),
        pci_id=pci_id,
        pci_address=address,
        architecture=ARCHITECTURES.get(_or_minus(get("architecture", "nvmlDeviceGetArchitecture"))),
        memory_bytes=total,
        unified_memory=True if total is None and NO_DEDICATED_MEMORY.search(name or "") else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if _is_pair(capability) else None,
        numa_node=pci.numa_node(machine, address) if address else None,
        cpu_affinity=pci.local_cpus(machine, address) if address else None,
        mig_enabled=None if mig is None else _first(mig) == 1,
        power_limit_watts=_watts(get("power_limit_watts", "nvmlDeviceGetPowerManagementLimit")),
        power_default_watts=_watts(get("power_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature_c=float(temperature) if isinstance(temperature, int) else None,
        throttle_reasons=_throttle(get("throttle_reasons", _throttle_call(nvml))),
        persistence=None if persistence is None else persistence == 1,
        ecc_enabled=None if ecc is None else _first(ecc) == 1,
        ecc_errors=errors if isinstance(errors, int) else None,
        compute_mode=COMPUTE_MODES.get(_or_minus(get("compute_mode", "nvmlDeviceGetComputeMode"))),
        virtualization=VIRTUALIZATION.get(_or_minus(get("virtualization", "nvmlDeviceGetVirtualizationMode"))),
        c2c=None if c2c is None else bool(getattr(c2c, "isC2cEnabled", 0)),
        state=nvml.states.get(index, "ok"),
        pcie=Pcie(
            generation=_count(get("pcie.generation", "nvmlDeviceGetCurrPcieLinkGeneration")),
            generation_max=_count(get("pcie.generation_max", "nvmlDeviceGetMaxPcieLinkGeneration")),
            width=_count(get("pcie.width", "nvmlDeviceGetCurrPcieLinkWidth")),
            width_max=_count(get("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth")),
        ),
    )


def _throttle_call(nvml: Nvml) -> str:
    newer = "nvmlDeviceGetCurrentClocksEventReasons"
    return newer if hasattr(nvml.module, newer) else "nvmlDeviceGetCurrentClocksThrottleReasons"


def _throttle(bits: object) -> tuple[str, ...] | None:
    return tuple(name for bit, name in THROTTLE.items() if bits & bit) if isinstance(bits, int) else None


def _first(pair: object) -> int | None:
    """The current one of (current, pending)."""
    return pair[0] if isinstance(pair, list | tuple) and pair and isinstance(pair[0], int) else None


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _or_minus(value: object) -> int:
    return value if isinstance(value, int) else -1


def pci_address(info: object) -> str | None:
    """``0000:3b:00.0`` from NVML's structure."""
    text = _text(getattr(info, "busId", None)) or ""
    match = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)", text)
    return f"{match.group(1).lower().lstrip('0').zfill(4)}:{match.group(2).lower()}" if match else None


def _pci_id(info: object) -> str | None:
    combined = getattr(info, "pciDeviceId", None)
    if not isinstance(combined, int) or combined <= 0:
        return None
    return f"{combined & 0xFFFF:04x}:{combined >> 16:04x}"


def _accelerators(nvml: Nvml, board: Board, handle: object, notes: Notes) -> list[Accelerator]:
    """The board, or its MIG instances."""
    if board.mig_enabled:
        found = _instances(nvml, board, handle)
        if not found:
            notes.add(f"boards.{board.index}", "NVML", "MIG is on and has no instance: no job can use this board")
        return found
    if not usable(board):
        notes.add(f"boards.{board.index}", "NVML", f"not usable: {board.compute_mode or board.state}")
        return []
    memory = _or_none(nvml.ask("nvmlDeviceGetMemoryInfo", handle))
    free = getattr(memory, "free", None)
    return [
        Accelerator(
            index=0,
            board=board.index,
            name=board.name,
            memory_bytes=board.memory_bytes,
            free_memory_bytes=free if isinstance(free, int) and board.memory_bytes else None,
            uuid=board.uuid,
            compute_share=1.0,
        )
    ]


def _instances(nvml: Nvml, board: Board, handle: object) -> list[Accelerator]:
    most = nvml.field(board.index, "mig_instances", "nvmlDeviceGetMaxMigDeviceCount", handle)
    found = []
    for place in range(min(most, 64) if isinstance(most, int) else 0):
        instance = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if isinstance(instance, Refused):
            continue  # places without an instance answer "not found"
        memory = _or_none(nvml.ask("nvmlDeviceGetMemoryInfo", instance))
        attributes = _or_none(nvml.ask("nvmlDeviceGetAttributes", instance))
        free = getattr(memory, "free", None)
        found.append(
            Accelerator(
                index=0,
                board=board.index,
                name=board.name,
                memory_bytes=_count(getattr(memory, "total", None)),
                free_memory_bytes=free if isinstance(free, int) else None,
                profile=_profile(_text(_or_none(nvml.ask("nvmlDeviceGetName", instance))), attributes),
                uuid=_text(_or_none(nvml.ask("nvmlDeviceGetUUID", instance))),
                compute_units=_count(getattr(attributes, "multiprocessorCount", None)),
                gpu_instance=_id(_or_none(nvml.ask("nvmlDeviceGetGpuInstanceId", instance))),
                compute_instance=_id(_or_none(nvml.ask("nvmlDeviceGetComputeInstanceId", instance))),
            )
        )
    return found


def _id(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _profile(name: str | None, attributes: object) -> str | None:
    """``1g.10gb``: the end of the instance's name, else from its slices and memory."""
    match = re.search(r"MIG (\S+)$", name or "")
    if match:
        return match.group(1)
    slices, own = (getattr(attributes, f"{kind}InstanceSliceCount", None) for kind in ("gpu", "compute"))
    megabytes = getattr(attributes, "memorySizeMB", None)
    if not (isinstance(slices, int) and isinstance(megabytes, int) and slices):
        return None
    whole_slice = f"{slices}g.{round(megabytes / 1024)}gb"
    return f"{own}c.{whole_slice}" if isinstance(own, int) and 0 < own < slices else whole_slice
