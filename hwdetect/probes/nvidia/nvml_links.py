"""NVLinks, PCIe distance and peer access between NVIDIA boards, through NVML."""

from __future__ import annotations

from dataclasses import replace

from hwdetect.probes.nvidia.nvml_calls import Nvml, format_pci_address
from hwdetect.types import Board, Link

MAX_LINKS = 36  # 18 on Hopper and Blackwell boards
REMOTE_GPU, REMOTE_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
LEVELS = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}  # nvmlGpuTopologyLevel_t
READ = 0  # NVML_P2P_CAPS_INDEX_READ
SPEED_FIELD = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
# One direction of one link by nvmlNvlinkVersion_t (1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0):
# https://www.nvidia.com/en-us/data-center/nvlink/ and the Pascal, Volta, Ampere, Hopper, Blackwell white papers.
LINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}


def read_nvlinks(nvml: Nvml, boards: tuple[Board, ...], handles: dict[int, object]) -> tuple[Board, ...]:
    """Each board with the number and the rate of its active NVLinks."""
    done = []
    for board in boards:
        handle = handles.get(board.index)
        if handle is None:
            done.append(board)
        elif board.mig_enabled:
            nvml.notes.add(f"boards.{board.index}.nvlinks_active", "NVML", "NVLink cannot be queried in MIG mode")
            done.append(board)
        else:
            active = _list_active(nvml, handle, board.index)
            rate = _read_rate(nvml, handle) if active else None
            done.append(
                replace(
                    board,
                    nvlinks_active=None if active is None else len(active),
                    nvlink_bytes_per_s=len(active) * rate if active and rate else None,
                )
            )
    return tuple(done)


def _list_active(nvml: Nvml, handle: object, board: int | None = None) -> list[int] | None:
    """Numbers of the links that are up; ``None`` for a board without NVLink (noted if ``board`` is given)."""
    states = []
    for link in range(MAX_LINKS):
        state = nvml.ask("nvmlDeviceGetNvLinkState", handle, link)
        if not isinstance(state, int):
            if board is not None and not states:
                nvml.notes.add(f"boards.{board}.nvlinks_active", "nvmlDeviceGetNvLinkState", state.why)
            break  # "not supported" or "invalid argument": no such link, and none after it
        states.append(state)
    return [link for link, state in enumerate(states) if state == 1] if states else None


def _read_rate(nvml: Nvml, handle: object) -> float | None:
    values = nvml.ask("nvmlDeviceGetFieldValues", handle, [SPEED_FIELD])
    try:
        if values[0].nvmlReturn == 0 and values[0].value.uiVal > 0:  # each field value carries a code of its own
            return values[0].value.uiVal * 1e6
    except (TypeError, AttributeError, IndexError):
        pass  # refused, or a binding that answers otherwise: by version then
    version = nvml.ask("nvmlDeviceGetNvLinkVersion", handle, 0)
    return LINK_BYTES_PER_S.get(version) if isinstance(version, int) else None


def read_links(nvml: Nvml, boards: tuple[Board, ...], handles: dict[int, object]) -> tuple[Link, ...]:
    """One link per pair: NVLink where there is any, else how far apart they are on PCIe."""
    by_address = {board.pci_address: board.index for board in boards if board.pci_address}
    direct = {
        index: _count_remotes(nvml, by_address, handle)
        for index, handle in handles.items()
        if _has_links(boards[index])
    }
    links = []
    for a in sorted(handles):
        for b in sorted(handles):
            if a >= b:
                continue
            p2p = nvml.ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], READ)
            count = _count_joint_links(direct.get(a), direct.get(b), a, b)
            level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
            kind = "nvlink" if count else LEVELS.get(level) if isinstance(level, int) else None
            if kind is None:
                nvml.notes.add(
                    f"links.{a}-{b}", "nvmlDeviceGetTopologyCommonAncestor", getattr(level, "why", "unknown level")
                )
                continue
            total, active = boards[a].nvlink_bytes_per_s, boards[a].nvlinks_active
            each = total / active if total and active else None
            links.append(
                Link(
                    a=a,
                    b=b,
                    kind=kind,
                    count=count or None,
                    bandwidth_bytes_per_s=count * each if count and each else None,
                    p2p=p2p == 0 if isinstance(p2p, int) else None,
                )
            )
    return tuple(links)


def _has_links(board: Board) -> bool:
    return bool(board.nvlinks_active)


def _count_remotes(nvml: Nvml, by_address: dict[str, int], handle: object) -> dict[int | str, int]:
    """Links to each other board by its index, and to switches under ``"switch"``."""
    counts: dict[int | str, int] = {}
    for link in _list_active(nvml, handle) or ():
        kind = nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        peer = by_address.get(format_pci_address(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)) or "")
        if peer is not None:
            counts[peer] = counts.get(peer, 0) + 1
        elif kind == REMOTE_SWITCH or (not isinstance(kind, int)):
            # Boards below an NVSwitch see only the switch; older drivers do not tell the type.
            counts["switch"] = counts.get("switch", 0) + 1
    return counts


def _count_joint_links(one: dict[int | str, int] | None, other: dict[int | str, int] | None, a: int, b: int) -> int:
    """Links between two boards: direct ones, else what both have to the switches."""
    if not one or not other:
        return 0
    # Through a switch a pair has no more than the narrower of the two.
    return one.get(b, 0) or min(one.get("switch", 0), other.get("switch", 0))
