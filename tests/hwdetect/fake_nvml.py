"""A stand-in for the ``pynvml`` module: boards from a few facts, and any call made to fail with any code."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    def __init__(self, value: int):
        super().__init__(value)
        self.value = value


@dataclass
class FakeBoard:
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int | None = 81559 << 20
    capability: tuple[int, int] = (9, 0)
    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    bus: int = 0x1B
    pci_device: int = 0x233010DE
    mig: list[SimpleNamespace] | None = None
    mig_enabled: bool = False
    compute_mode: int = 0
    used_bytes: int = 0
    nvlinks: int = 0
    virtualization: int = 1
    ecc_errors: int = 0


@dataclass
class FakeNvml:
    """``fails`` maps a call to a code (for every board) or to {board: code}; ``hangs`` names a call that sleeps."""

    boards: list[FakeBoard] = field(default_factory=lambda: [FakeBoard()])
    fails: dict[str, object] = field(default_factory=dict)
    hangs: str | None = None
    p2p: int = 0
    level: int = 40
    NVMLError = NVMLError

    def __getattr__(self, name: str):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answer = ANSWERS.get(name)
        if answer is None:
            raise AttributeError(name)

        def call(*arguments):
            if self.hangs == name:
                time.sleep(60)
            code = self.fails.get(name)
            if isinstance(code, dict):
                code = code.get(board_of(arguments))
            if code:
                raise NVMLError(code)
            return answer(self, *arguments)

        return call


def board_of(arguments: tuple) -> int | None:
    first = arguments[0] if arguments else None
    return first if isinstance(first, int) else first[1] if isinstance(first, tuple) else None


def _board(nvml: FakeNvml, handle) -> FakeBoard:
    return nvml.boards[handle[1]]


def _memory(nvml, handle):
    if handle[0] == "mig":
        return SimpleNamespace(**vars(_board(nvml, handle).mig[handle[2]].memory))
    board = _board(nvml, handle)
    if board.memory_bytes is None:
        raise NVMLError(3)
    return SimpleNamespace(total=board.memory_bytes, used=board.used_bytes, free=board.memory_bytes - board.used_bytes)


def _pci(nvml, handle):
    board = _board(nvml, handle)
    return SimpleNamespace(busId=f"00000000:{board.bus:02X}:00.0".encode(), pciDeviceId=board.pci_device)


def _instance(nvml, handle, place):
    board = _board(nvml, handle)
    if board.mig is None or place >= len(board.mig):
        raise NVMLError(6)
    return ("mig", handle[1], place)


def _of(attribute):
    def answer(nvml, handle, *_):
        if handle[0] == "mig":
            return getattr(_board(nvml, handle).mig[handle[2]], attribute)
        return getattr(_board(nvml, handle), attribute)

    return answer


def _link_state(nvml, handle, link):
    if link >= _board(nvml, handle).nvlinks:
        raise NVMLError(3 if _board(nvml, handle).nvlinks == 0 else 2)
    return 1


ANSWERS = {
    "nvmlInit": lambda nvml: None,
    "nvmlShutdown": lambda nvml: None,
    "nvmlSystemGetDriverVersion": lambda nvml: "590.48.01",
    "nvmlSystemGetCudaDriverVersion_v2": lambda nvml: 13010,
    "nvmlDeviceGetCount": lambda nvml: len(nvml.boards),
    "nvmlDeviceGetHandleByIndex": lambda nvml, index: ("gpu", index),
    "nvmlDeviceGetName": _of("name"),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlDeviceGetUUID": _of("uuid"),
    "nvmlDeviceGetArchitecture": lambda nvml, handle: 9,
    "nvmlDeviceGetCudaComputeCapability": _of("capability"),
    "nvmlDeviceGetMigMode": lambda nvml, handle: [int(_board(nvml, handle).mig_enabled)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda nvml, handle: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceGetGpuInstanceId": _of("gpu_instance"),
    "nvmlDeviceGetComputeInstanceId": _of("compute_instance"),
    "nvmlDeviceGetAttributes": _of("attributes"),
    "nvmlDeviceGetEccMode": lambda nvml, handle: [1, 1],
    "nvmlDeviceGetTotalEccErrors": _of("ecc_errors"),
    "nvmlDeviceGetPersistenceMode": lambda nvml, handle: 1,
    "nvmlDeviceGetTemperature": lambda nvml, handle, sensor: 41,
    "nvmlDeviceGetC2cModeInfoV": lambda nvml, handle: SimpleNamespace(isC2cEnabled=0),
    "nvmlDeviceGetPowerManagementLimit": lambda nvml, handle: 700000,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda nvml, handle: 700000,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda nvml, handle: 1,
    "nvmlDeviceGetPerformanceState": lambda nvml, handle: 0,
    "nvmlDeviceGetComputeMode": _of("compute_mode"),
    "nvmlDeviceGetVirtualizationMode": _of("virtualization"),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda nvml, handle: 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda nvml, handle: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda nvml, handle: 16,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda nvml, handle: 16,
    "nvmlDeviceGetNvLinkState": _link_state,
    "nvmlDeviceGetNvLinkVersion": lambda nvml, handle, link: 6,
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda nvml, handle, link: 2,
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda nvml, handle, link: SimpleNamespace(busId=b"00000000:05:00.0"),
    "nvmlDeviceGetFieldValues": lambda nvml, handle, fields: [],
    "nvmlDeviceGetP2PStatus": lambda nvml, a, b, kind: nvml.p2p,
    "nvmlDeviceGetTopologyCommonAncestor": lambda nvml, a, b: nvml.level,
}
