"""NVIDIA boards through NVML. Every call may fail with any of NVML's codes: then that field is ``None`` with a note."""

from __future__ import annotations

import re
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes
from hwdetect.probes.nvidia.nvml_calls import STATES, Nvml, Refused, format_pci_address, get_line, get_value
from hwdetect.probes.nvidia.nvml_links import read_links, read_nvlinks
from hwdetect.probes.nvidia.nvml_messages import NvmlProgress
from hwdetect.probes.nvidia.smi_words import NO_DEDICATED_MEMORY
from hwdetect.probes.partial import PartialHardware, is_usable, number_accelerators
from hwdetect.types import Accelerator, Board, Pcie, Software

COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
VIRTUALIZATION = {0: None, 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell",
}  # fmt: skip
# nvmlClocksEventReasons bits; idle and what the user set are no faults but are listed.
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


def read_nvml(machine: Machine, module, notes: Notes, progress: NvmlProgress) -> PartialHardware | None:
    """All boards; ``None`` where NVML cannot be started or counts no board (a note says why)."""
    nvml = Nvml(module, notes)
    started = nvml.ask("nvmlInit")
    if isinstance(started, Refused):
        notes.add("boards", "nvmlInit", started.why)
        return None
    try:
        return _read_boards(machine, nvml, notes, progress)
    finally:
        nvml.ask("nvmlShutdown")


def _read_boards(machine: Machine, nvml: Nvml, notes: Notes, progress: NvmlProgress) -> PartialHardware | None:
    driver, cuda = nvml.ask("nvmlSystemGetDriverVersion"), nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
    for field, answer in (("driver", driver), ("cuda_driver", cuda)):
        if isinstance(answer, Refused):
            notes.add(f"software.{field}", "NVML", answer.why)
    progress.software = Software(driver=get_line(get_value(driver)), cuda_driver=_format_cuda_version(get_value(cuda)))
    count = nvml.ask("nvmlDeviceGetCount")
    if isinstance(count, Refused) or not isinstance(count, int):
        notes.add("boards", "nvmlDeviceGetCount", count.why if isinstance(count, Refused) else f"answers {count!r}")
        return PartialHardware(software=progress.software)
    handles: dict[int, object] = {}
    for index in range(min(count, MAX_BOARDS)):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if isinstance(handle, Refused):
            notes.add(f"boards.{index}", "nvmlDeviceGetHandleByIndex", handle.why)
            state = STATES.get(handle.code or 0, "unreadable")
            progress.boards.append(Board(index=index, vendor="nvidia", state=state))
            continue
        handles[index] = handle
        board = _read_board(machine, nvml, index, handle)
        progress.boards.append(board)
        progress.accelerators += _list_accelerators(nvml, board, handle, notes)
        progress.after_each_board()
    boards = read_nvlinks(nvml, tuple(progress.boards), handles)
    boards = tuple(replace(b, state=nvml.states.get(b.index, b.state)) for b in boards)
    healthy = {b.index for b in boards if is_usable(b)}
    return PartialHardware(
        boards=boards,
        accelerators=number_accelerators(tuple(a for a in progress.accelerators if a.board in healthy)),
        links=read_links(nvml, boards, handles),
        software=progress.software,
    )


def _format_cuda_version(version: object) -> str | None:
    """``13.1`` from 13010."""
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) and version > 0 else None


def _get_positive(value: object) -> int | None:
    """A positive whole number; zero is no reading of a size or a limit."""
    return value if isinstance(value, int) and value > 0 else None


def _convert_to_watts(value: object) -> float | None:
    return value / 1000 if isinstance(value, int) and value > 0 else None  # milliwatts


def _read_board(machine: Machine, nvml: Nvml, index: int, handle: object) -> Board:
    def get(field: str, name: str, *arguments):
        return nvml.field(index, field, name, handle, *arguments)

    name = get_line(get("name", "nvmlDeviceGetName"))
    memory = get("memory_bytes", "nvmlDeviceGetMemoryInfo")
    total = _get_positive(getattr(memory, "total", None))
    where = get("pci_address", "nvmlDeviceGetPciInfo")
    address, pci_id = format_pci_address(where), _format_pci_id(where)
    capability = get("compute_capability", "nvmlDeviceGetCudaComputeCapability")
    mig, ecc = get("mig_enabled", "nvmlDeviceGetMigMode"), get("ecc_enabled", "nvmlDeviceGetEccMode")
    persistence = get("persistence", "nvmlDeviceGetPersistenceMode")
    # NVML_MEMORY_ERROR_TYPE_UNCORRECTED since the last reset (NVML_VOLATILE_ECC).
    errors = get("ecc_errors", "nvmlDeviceGetTotalEccErrors", 1, 0) if _get_first(ecc) == 1 else None
    temperature = get("temperature_c", "nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
    c2c = get("c2c", "nvmlDeviceGetC2cModeInfoV")
    return Board(
        index=index,
        vendor="nvidia",
        name=name,
        uuid=get_line(get("uuid", "nvmlDeviceGetUUID")),
        pci_id=pci_id,
        pci_address=address,
        architecture=ARCHITECTURES.get(_get_code(get("architecture", "nvmlDeviceGetArchitecture"))),
        memory_bytes=total,
        unified_memory=True if total is None and NO_DEDICATED_MEMORY.search(name or "") else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if _is_pair(capability) else None,
        numa_node=pci.read_numa_node(machine, address) if address else None,
        cpu_affinity=pci.read_local_cpus(machine, address) if address else None,
        mig_enabled=None if mig is None else _get_first(mig) == 1,
        power_limit_watts=_convert_to_watts(get("power_limit_watts", "nvmlDeviceGetPowerManagementLimit")),
        power_default_watts=_convert_to_watts(get("power_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature_c=float(temperature) if isinstance(temperature, int) else None,
        throttle_reasons=_decode_throttle(get("throttle_reasons", _choose_throttle_call(nvml))),
        performance_state=_decode_state(get("performance_state", "nvmlDeviceGetPerformanceState")),
        persistence=None if persistence is None else persistence == 1,
        ecc_enabled=None if ecc is None else _get_first(ecc) == 1,
        ecc_errors=errors if isinstance(errors, int) else None,
        compute_mode=COMPUTE_MODES.get(_get_code(get("compute_mode", "nvmlDeviceGetComputeMode"))),
        virtualization=VIRTUALIZATION.get(_get_code(get("virtualization", "nvmlDeviceGetVirtualizationMode"))),
        c2c=None if c2c is None else bool(getattr(c2c, "isC2cEnabled", 0)),
        state=nvml.states.get(index, "ok"),
        pcie=Pcie(
            generation=_get_positive(get("pcie.generation", "nvmlDeviceGetCurrPcieLinkGeneration")),
            generation_max=_get_positive(get("pcie.generation_max", "nvmlDeviceGetMaxPcieLinkGeneration")),
            width=_get_positive(get("pcie.width", "nvmlDeviceGetCurrPcieLinkWidth")),
            width_max=_get_positive(get("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth")),
        ),
    )


def _choose_throttle_call(nvml: Nvml) -> str:
    # Renamed with driver 535; bindings have one of the names or both.
    newer = "nvmlDeviceGetCurrentClocksEventReasons"
    return newer if hasattr(nvml.module, newer) else "nvmlDeviceGetCurrentClocksThrottleReasons"


def _decode_state(state: object) -> int | None:
    """nvmlPstates_t: 0 to 15, and 32 where it is not known."""
    return state if isinstance(state, int) and 0 <= state <= 15 else None


def _decode_throttle(bits: object) -> tuple[str, ...] | None:
    return tuple(name for bit, name in THROTTLE.items() if bits & bit) if isinstance(bits, int) else None


def _get_first(pair: object) -> int | None:
    """The current one of (current, pending)."""
    return pair[0] if isinstance(pair, list | tuple) and pair and isinstance(pair[0], int) else None


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _get_code(value: object) -> int:
    return value if isinstance(value, int) else -1


def _format_pci_id(info: object) -> str | None:
    combined = getattr(info, "pciDeviceId", None)
    if not isinstance(combined, int) or combined <= 0:
        return None
    return f"{combined & 0xFFFF:04x}:{combined >> 16:04x}"  # device in the upper half, vendor in the lower


def _list_accelerators(nvml: Nvml, board: Board, handle: object, notes: Notes) -> list[Accelerator]:
    """The board, or its MIG instances."""
    if board.mig_enabled:
        instances = _list_instances(nvml, board, handle)
        if not instances:
            notes.add(f"boards.{board.index}", "NVML", "MIG is on and has no instance: no job can use this board")
        return instances
    if not is_usable(board):
        notes.add(f"boards.{board.index}", "NVML", f"not usable: {board.compute_mode or board.state}")
        return []
    memory = get_value(nvml.ask("nvmlDeviceGetMemoryInfo", handle))
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


def _list_instances(nvml: Nvml, board: Board, handle: object) -> list[Accelerator]:
    most = nvml.field(board.index, "mig_instances", "nvmlDeviceGetMaxMigDeviceCount", handle)
    instances = []
    for place in range(min(most, 64) if isinstance(most, int) else 0):
        instance = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if isinstance(instance, Refused):
            continue  # places without an instance answer "not found"
        memory = get_value(nvml.ask("nvmlDeviceGetMemoryInfo", instance))
        attributes = get_value(nvml.ask("nvmlDeviceGetAttributes", instance))
        free = getattr(memory, "free", None)
        instances.append(
            Accelerator(
                index=0,
                board=board.index,
                name=board.name,
                memory_bytes=_get_positive(getattr(memory, "total", None)),
                free_memory_bytes=free if isinstance(free, int) else None,
                profile=_name_profile(get_line(get_value(nvml.ask("nvmlDeviceGetName", instance))), attributes),
                uuid=get_line(get_value(nvml.ask("nvmlDeviceGetUUID", instance))),
                compute_units=_get_positive(getattr(attributes, "multiprocessorCount", None)),
                gpu_instance=_get_id(get_value(nvml.ask("nvmlDeviceGetGpuInstanceId", instance))),
                compute_instance=_get_id(get_value(nvml.ask("nvmlDeviceGetComputeInstanceId", instance))),
            )
        )
    return instances


def _get_id(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _name_profile(name: str | None, attributes: object) -> str | None:
    """``1g.10gb``: the end of the instance's name, else from its slices and memory."""
    match = re.search(r"MIG (\S+)$", name or "")
    if match:
        return match.group(1)
    # A compute instance may hold a part of its GPU instance: "1c.3g.40gb".
    slices, own = (getattr(attributes, f"{kind}InstanceSliceCount", None) for kind in ("gpu", "compute"))
    megabytes = getattr(attributes, "memorySizeMB", None)
    if not (isinstance(slices, int) and isinstance(megabytes, int) and slices):
        return None
    whole_slice = f"{slices}g.{round(megabytes / 1024)}gb"
    return f"{own}c.{whole_slice}" if isinstance(own, int) and 0 < own < slices else whole_slice
