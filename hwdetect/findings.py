"""What is wrong or wasteful about a machine, with the reading that shows it and what to do. Pure: values in, values out.

Each rule looks at one thing and yields its findings; ``RULES`` is the order in which they are listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Literal

from hwdetect.driver_floor import get_least_driver, is_older
from hwdetect.maker_tools import get_tool_of
from hwdetect.types import WORKING_STATES, Accelerator, Board, Finding, Hardware

GIB = 1 << 30
# PyTorch's worker processes pass batches through shared memory; Docker's default of 64 MiB stops them with a bus error.
# https://docs.pytorch.org/docs/stable/notes/multiprocessing.html
SHM_NEEDED_BYTES = 1 * GIB
# RDMA pins what it registers, and memlock bounds that for whoever is not root: Red Hat asks for no limit at all. A gibibyte is where
# we begin to speak; 8 MiB is a usual default.
# https://docs.redhat.com/en/documentation/red_hat_enterprise_linux/9/html/configuring_infiniband_and_rdma_networks
LOCKED_NEEDED_BYTES = 1 * GIB
# With the file_descriptor strategy, the default on Linux, each tensor that a worker hands over is an open file until it is used:
# two batches of four tensors ahead, and the worker's own pipes. 1,024 is the default of most distributions.
# https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor
OPEN_FILES_NEEDED = 1024
OPEN_FILES_PER_WORKER = 16
# Two boards of one kind differ by retired pages and by what the driver keeps: chips of an Atlas 300I Duo by 1 %.
EQUAL_SIZES = 1.03
BUSY_SHARE = 0.10  # of a board's memory: more than a display and a context take
POWER_TOLERANCE = 0.98
# P0 to P3 compute, what is behind plays video or waits
# https://docs.nvidia.com/gameworks/content/gameworkslibrary/coresdk/nvapi/group__gpupstate.html
LAST_COMPUTING_STATE = 3
THERMAL = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown"})
POWER_BRAKE = frozenset({"hw_power_brake_slowdown"})


def find_problems(hardware: Hardware) -> tuple[Finding, ...]:
    """Everything that the rules find, worst first, in the order of the rules."""
    problems = list(chain.from_iterable(rule(hardware) for rule in RULES))
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(problems, key=lambda finding: order[finding.severity]))


def _build_finding(
    name: str, severity: Literal["info", "warning", "error"], what: str, evidence: str, action: str
) -> Finding:
    return Finding(id=name, severity=severity, what=what, evidence=evidence, action=action)


def _name_board(board: Board) -> str:
    return f"GPU {board.index}" + (f" ({board.name})" if board.name else "")


def _name_boards(boards: Sequence[Board]) -> str:
    """``GPU 0 (NVIDIA L4)``, or ``GPUs 0, 1, 2 and 5 more (NVIDIA L4)``."""
    if len(boards) == 1:
        return _name_board(boards[0])
    shown = ", ".join(str(board.index) for board in boards[:8])
    more = f" and {len(boards) - 8} more" if len(boards) > 8 else ""
    names = {board.name for board in boards}
    return f"GPUs {shown}{more}" + (f" ({boards[0].name})" if len(names) == 1 and boards[0].name else "")


def _tell(boards: Sequence[Board], verb: str) -> str:
    """``GPU 0 (NVIDIA L4) runs``, or ``GPUs 0, 1 (NVIDIA L4) run``: ``verb`` as of one."""
    plural = {"is": "are"}.get(verb, verb.removesuffix("s"))
    return f"{_name_boards(boards)} {verb if len(boards) == 1 else plural}"


def list_own_boards(hw: Hardware) -> tuple[Board, ...]:
    """The boards that this job may use, and where nothing hides boards from it also those that no job can."""
    used = {accelerator.board for accelerator in hw.accelerators}
    return tuple(b for b in hw.boards if b.index in used or hw.software.visible_devices is None)


def _group(
    boards: Sequence[Board], read: Callable[[Board], Hashable | None]
) -> Iterator[tuple[Sequence[Board], Hashable]]:
    """Boards with the same fault: one finding speaks of all."""
    groups: dict[Hashable, list[Board]] = {}
    for board in boards:
        if (fault := read(board)) is not None:
            groups.setdefault((board.vendor, fault), []).append(board)
    for (_, fault), members in groups.items():  # ty: ignore[not-iterable]
        yield members, fault


def is_rented(hw: Hardware) -> bool:
    """A virtual machine, by its processor or by what its boards say: whoever has it reaches no slot and no cable."""
    passed_through = any(board.virtualization in ("Pass-Through", "VGPU") for board in hw.boards)
    return passed_through or hw.software.is_virtual


def check_driver_answers(hw: Hardware) -> Iterator[Finding]:
    """A driver that hangs in the middle: what was read before is shown, and every job will hang there too."""
    hanging = [note for note in hw.notes if "the driver hangs" in note.why or "no answer within" in note.why]
    asked = [
        note for note in hanging if note.field.startswith(("boards", "links", "accelerators", "nvidia", "amd", "intel"))
    ]
    if asked:
        yield _build_finding(
            "driver-hangs",
            "error",
            "the driver of the accelerators does not answer",
            "; ".join(sorted({f"{note.who}: {note.why}" for note in asked}))[:300],
            "look for its messages in the kernel log (dmesg), reset the boards or reboot: a job that opens them will hang as well",
        )


def check_board_states(hw: Hardware) -> Iterator[Finding]:
    boards = list_own_boards(hw)
    for members, state in _group(boards, lambda b: b.state if b.state in WORKING_STATES - {None, "ok"} else None):
        yield _build_finding(
            "board-health",
            "warning",
            f"{_tell(members, 'reports')} {state} and can be used",
            f"boards[{members[0].index}].state = {state}",
            f"look for its reason ({get_tool_of(members[0].vendor).processes}, and {get_tool_of(members[0].vendor).log} messages in the "
            "kernel log) before a long run",
        )
    for members, state in _group(boards, lambda b: b.state if b.state not in WORKING_STATES else None):
        tool = get_tool_of(members[0].vendor)
        places = ", ".join(b.pci_address for b in members if b.pci_address)
        yield _build_finding(
            "board-state",
            "error",
            f"{_name_boards(members)} cannot be used: {state}",
            f"boards[{members[0].index}].state = {state}" + (f" at {places}" if places else ""),
            f"reset the board ({tool.reset_board(members[0].index, members[0].pci_address)}) or reboot; if it comes back, look for {tool.log} messages in the "
            "kernel log and " + ("give the machine back" if is_rented(hw) else "call the vendor"),
        )
    answering = [b for b in boards if b.state in WORKING_STATES]
    for members, mode in _group(answering, lambda b: b.compute_mode):
        if mode == "Prohibited":
            yield _build_finding(
                "compute-mode",
                "error",
                f"{_tell(members, 'admits')} no process",
                "compute mode is Prohibited",
                f"nvidia-smi -i {','.join(str(b.index) for b in members)} -c DEFAULT",
            )
        elif str(mode).startswith("Exclusive"):
            yield _build_finding(
                "compute-mode",
                "warning",
                f"{_tell(members, 'admits')} one process at a time",
                f"compute mode is {mode}",
                "start one process for each GPU, and none beside it",
            )


def _is_at_work(board: Board) -> bool | None:
    """Whether clocks are up; ``None`` where the board does not say. A board that has just been left, or that shows a desktop, gives no
    idleness as a reason and has its clocks down all the same (driver 590, RTX 3090 at 210 of 2,100 MHz in P8)."""
    if board.throttle_reasons is None:
        return None
    saves_power = board.performance_state is not None and board.performance_state > LAST_COMPUTING_STATE
    return "gpu_idle" not in board.throttle_reasons and not saves_power


def _read_slow_width(board: Board) -> tuple[int, int] | None:
    """From generation 6 on an idle link also puts lanes to sleep (L0p of the PCI Express base specification)."""
    width, most = board.pcie.width, board.pcie.width_max
    asleep = (board.pcie.generation_max or 0) >= 6 and not _is_at_work(board)
    return (width, most) if width and most and width < most and not asleep else None


def _read_slow_generation(board: Board) -> tuple[int, int] | None:
    """An idle link slows down to save power: only what was read under load, or while clocks are up, counts."""
    pcie = board.pcie
    busy = pcie.generation_load or (pcie.generation if _is_at_work(board) else None)
    return (busy, pcie.generation_max) if busy and pcie.generation_max and busy < pcie.generation_max else None


def check_pcie_links(hw: Hardware) -> Iterator[Finding]:
    rented = is_rented(hw)
    for members, (width, most) in _group(list_own_boards(hw), _read_slow_width):  # ty: ignore[not-iterable]
        yield _build_finding(
            "pcie-width",
            "info" if rented else "warning",
            f"{_tell(members, 'runs')} at x{width} of x{most}",
            f"pcie.width {width}, pcie.width_max {most}",
            "a virtual machine may show another width than the board has: time a copy (perfgen detect --measure)"
            if rented
            else "move the card to a full slot, or remove what shares its lanes; offloading and data loading run over this link",
        )
    for members, (generation, most) in _group(list_own_boards(hw), _read_slow_generation):  # ty: ignore[not-iterable]
        yield _build_finding(
            "pcie-generation",
            "warning",
            f"{_tell(members, 'runs')} PCIe generation {generation} of {most} under load",
            f"pcie.generation {generation}, pcie.generation_max {most}",
            "take another instance, if copies to the device are slow (perfgen detect --measure)"
            if rented
            else "check the slot, the riser and the link speed in the firmware's settings",
        )


def _read_low_power(board: Board) -> tuple[float, float] | None:
    limit, default = board.power_limit_watts, board.power_default_watts
    return (limit, default) if limit and default and limit < default * POWER_TOLERANCE else None


def check_power_and_heat(hw: Hardware) -> Iterator[Finding]:
    boards = list_own_boards(hw)
    for members, (limit, default) in _group(boards, _read_low_power):  # ty: ignore[not-iterable]
        yield _build_finding(
            "power-limit",
            "warning",
            f"{_tell(members, 'is')} held to {limit:.0f} W of {default:.0f} W",
            f"power_limit_watts {limit:.0f}, power_default_watts {default:.0f}",
            f"{get_tool_of(members[0].vendor).lift_power(members[0].index, members[0].pci_address, default)}, if cooling and supply allow",
        )
    for members, hot in _group(boards, lambda b: tuple(sorted(THERMAL & {*(b.throttle_reasons or ())})) or None):
        degrees = [b.temperature_c for b in members if b.temperature_c is not None]
        temperature = f", {max(degrees):.0f} °C" if degrees else ""
        yield _build_finding(
            "thermal-throttling",
            "warning",
            f"{_tell(members, 'slows')} down because of heat",
            f"throttle reasons: {', '.join(hot)}{temperature}",  # ty: ignore[no-matching-overload]
            "take another instance; a throttled board makes all others wait"
            if is_rented(hw)
            else "check fans, air flow and the room; a throttled board makes all others wait",
        )
    for members, _ in _group(boards, lambda b: True if POWER_BRAKE & {*(b.throttle_reasons or ())} else None):
        yield _build_finding(
            "power-brake",
            "warning",
            f"{_tell(members, 'is')} slowed down from outside (power brake)",
            "throttle reasons: hw_power_brake_slowdown",
            "the server's power supply asks for it: check its units",
        )


def check_memory_errors(hw: Hardware) -> Iterator[Finding]:
    for board in list_own_boards(hw):
        reset = get_tool_of(board.vendor).reset_board(board.index, board.pci_address)
        if board.ecc_errors:
            yield _build_finding(
                "ecc-errors",
                "error",
                f"{_name_board(board)} has uncorrectable memory errors",
                f"{board.ecc_errors} since the last reset",
                f"reset the board ({reset}), and replace it if they come back: results may be wrong",
            )
    for members, _ in _group(list_own_boards(hw), lambda b: b.repair_pending or None):
        yield _build_finding(
            "memory-repair-pending",
            "warning",
            f"{_tell(members, 'waits')} for a reset to take bad memory out of use",
            "remapped rows or retired pages are pending",
            f"end its jobs and reset it ({get_tool_of(members[0].vendor).reset_board(members[0].index, members[0].pci_address)}): until "
            "then the bad rows are in use",
        )


def list_accelerators_in_use(hw: Hardware) -> Iterator[tuple[Accelerator, int, int]]:
    """Those of whose memory others hold more than a display and a context take: each with its bytes, and the free ones."""
    boards = {board.index: board for board in hw.boards}
    for accelerator in hw.accelerators:
        total, free = accelerator.memory_bytes, accelerator.free_memory_bytes
        owner = boards.get(accelerator.board)
        if owner and owner.integrated:
            continue  # what is set aside for the display is in use, and no limit: a job is given the host's memory
        if total and free is not None and total - free > BUSY_SHARE * total:
            yield accelerator, total, free


def check_memory_in_use(hw: Hardware) -> Iterator[Finding]:
    boards = {board.index: board for board in hw.boards}
    busy = list(list_accelerators_in_use(hw))
    if not busy:
        return
    owner = boards.get(busy[0][0].board)
    who = get_tool_of(owner.vendor).processes if owner else "its maker's tool"
    taken = max((total - free) / GIB for _, total, free in busy)
    names = ", ".join(str(accelerator.index) for accelerator, _, _ in busy[:8])
    yield _build_finding(
        "memory-in-use",
        "warning",
        f"accelerator{'s' if len(busy) > 1 else ''} {names}: others use "
        + (f"{taken:.1f} of {busy[0][1] / GIB:.1f} GiB" if len(busy) == 1 else f"up to {taken:.1f} GiB"),
        "free " + ", ".join(f"{free / GIB:.1f} GiB" for _, _, free in busy[:8]),
        f"end the other processes ({who} shows them), or use another board",
    )


def check_partitions(hw: Hardware) -> Iterator[Finding]:
    for board in list_own_boards(hw):
        if board.mig_enabled:
            own = [a for a in hw.accelerators if a.board == board.index]
            slices = f"{len(own)} instances" if own else "no instance, so no job can use it"
            yield _build_finding(
                "mig",
                "info" if own else "error",
                f"{_name_board(board)} is in MIG mode with {slices}",
                "; ".join(f"{a.profile or 'unnamed'}" for a in own) or "mig_enabled, no accelerator",
                "a training process uses one instance; NVLink and peer access do not exist between instances"
                if own
                else f"make instances (nvidia-smi mig -cgi …), or turn MIG off: nvidia-smi -i {board.index} -mig 0",
            )


def check_virtual_boards(hw: Hardware) -> Iterator[Finding]:
    virtual = _group(list_own_boards(hw), lambda b: b.device or "not known" if b.virtualization == "VGPU" else None)
    for members, device in virtual:
        yield _build_finding(
            "virtual-gpu",
            "info",
            f"{_tell(members, 'is')} virtual",
            f"virtualization VGPU, device {device}",
            "other guests may take turns on its compute units: time it (perfgen detect --measure) before relying on rates",
        )


def check_mixed_boards(hw: Hardware) -> Iterator[Finding]:
    used = {a.board for a in hw.accelerators}
    boards = [b for b in hw.boards if b.index in used]
    # of two with one name a cut-off answer may leave one unknown: that is no other board
    devices = {b.name: b.device for b in boards if b.device}
    kinds = {(b.device or devices.get(b.name, b.name), b.memory_bytes) for b in boards}
    sizes = [b.memory_bytes for b in boards if b.memory_bytes]
    if len({name for name, _ in kinds}) > 1 or (sizes and max(sizes) > min(sizes) * EQUAL_SIZES):
        yield _build_finding(
            "mixed-gpus",
            "warning",
            "the accelerators are not equal",
            "; ".join(
                sorted(f"{name or 'unnamed'} {f'{size / GIB:.0f} GiB' if size else ''}".strip() for name, size in kinds)
            ),
            "the slowest and smallest sets the pace: choose equal ones with " + get_tool_of(boards[0].vendor).visible,
        )


def check_peer_access(hw: Hardware) -> Iterator[Finding]:
    own = {board.index for board in list_own_boards(hw)}
    off = [link for link in hw.links if link.p2p is False and {link.a, link.b} <= own]
    if off:
        yield _build_finding(
            "p2p-off",
            "warning",
            f"{len(off)} of {len(hw.links)} pairs of GPUs have no peer access",
            ", ".join(f"{link.a}-{link.b}" for link in off[:8]) + ("…" if len(off) > 8 else ""),
            "collectives go through host memory: prefer little communication (DDP, or fewer GPUs); where NCCL hangs, "
            "set NCCL_P2P_DISABLE=1",
        )
    dark = [b for b in list_own_boards(hw) if b.nvlinks_active == 0 and len(own) > 1]
    if dark:
        yield _build_finding(
            "nvlink-inactive",
            "info",
            "NVLink is there and no link is up",
            f"boards {', '.join(str(b.index) for b in dark)}",
            "without a bridge between the cards they talk over PCIe",
        )


def check_network_ports(hw: Hardware) -> Iterator[Finding]:
    """Boards none of whose ports is on their own socket, where some port carries data."""
    far = list_far_boards(hw)
    if far:
        yield _build_finding(
            "gpu-nic-sockets",
            "warning",
            "GPUs and network ports are on different sockets",
            f"boards {', '.join(map(str, far))} reach every port across the sockets only (SYS)",
            "traffic between nodes crosses the sockets: use the GPUs that are near a port"
            if is_rented(hw)
            else "traffic between nodes crosses the sockets: move a card, or use the GPUs that are near the port",
        )
    if any(p.kind == "efa" for p in hw.network):
        yield _build_finding(
            "efa",
            "info",
            "EFA ports are here: NCCL uses them only through its plugin",
            ", ".join(p.name for p in hw.network if p.kind == "efa"),
            "install aws-ofi-nccl and look for its name in the first lines of NCCL_DEBUG=INFO",
        )
    silent = [p.name for p in hw.network if p.kind in ("infiniband", "roce") and p.state not in (None, "active")]
    if silent:
        yield _build_finding(
            "port-down",
            "info",
            f"{len(silent)} RDMA ports carry no data",
            ", ".join(silent),
            "leave them out with NCCL_IB_HCA, or bring them up",
        )


def list_far_boards(hw: Hardware) -> list[int]:
    """Boards that reach every active port across sockets only. SYS is the way between NUMA nodes, of which a socket may have several:
    where it has, the nodes of both ends must be known, and lie in different sockets."""
    # nvidia-smi says mlx5_0, the kernel mlx5_0/1
    ports = {p.name.partition("/")[0]: p for p in hw.network if p.kind in ("infiniband", "roce", "efa")}
    active = {name: port for name, port in ports.items() if port.state in (None, "active")}
    boards = {board.index: board.numa_node for board in hw.boards}
    near: dict[int, bool] = {}
    for path in hw.paths:
        port = active.get(path.port.partition("/")[0])
        if port is not None:
            crosses = path.kind == "sys" and are_different_sockets(hw, boards.get(path.board), port.numa_node)
            near[path.board] = near.get(path.board, False) or not crosses
    own = {board.index for board in list_own_boards(hw)} if hw.boards else near.keys()
    return sorted(board for board, is_near in near.items() if not is_near and board in own)


def are_different_sockets(hw: Hardware, one: int | None, other: int | None) -> bool:
    """Of two NUMA nodes between which the way is SYS. Linux counts them socket by socket; where nobody counts the sockets, as in a
    topology of NCCL, more than two nodes are those of two."""
    nodes = hw.cpu.numa_nodes
    if nodes is not None:  # a topology leaves nodes out that have nothing to tell of
        nodes = max(nodes, *(end.numa_node + 1 for end in (*hw.boards, *hw.network) if end.numa_node is not None), 0)
    sockets = hw.cpu.packages or (2 if nodes and nodes > 2 else None)
    if sockets is None or nodes is None or nodes <= sockets:
        return sockets != 1
    if one is None or other is None:
        return False
    return one * sockets // nodes != other * sockets // nodes


def check_driver(hw: Hardware) -> Iterator[Finding]:
    needed = get_least_driver(hw.software.torch_build)
    if needed and hw.software.driver and is_older(hw.software.driver, needed):
        yield _build_finding(
            "driver-too-old",
            "error",
            f"the driver is too old for the installed torch ({hw.software.torch_build})",
            f"driver {hw.software.driver}, needed {needed}",
            f"install driver {needed} or newer, or a torch build for the CUDA of this driver",
        )
    usable = [b for b in hw.boards if b.state in (None, "ok") and not b.integrated]
    build = next((build for b in usable if (build := get_tool_of(b.vendor).build)), None)
    if build and hw.software.torch_build == "cpu":
        yield _build_finding(
            "torch-cpu-build",
            "error",
            f"torch is installed in its CPU build beside a board that its {build} build is for",
            f"torch {hw.software.torch}",
            f"install the {build} build of torch: see https://pytorch.org/get-started/locally/",
        )


def check_processors(hw: Hardware) -> Iterator[Finding]:
    cpu = hw.cpu
    if cpu.quota is not None and cpu.cpus_online and cpu.quota < (cpu.cpus_allowed or cpu.cpus_online):
        yield _build_finding(
            "cpu-quota",
            "warning",
            f"the CPU quota allows {cpu.quota:g} of {cpu.cpus_allowed or cpu.cpus_online} CPUs",
            f"quota {cpu.quota:g}, budget {cpu.budget}",
            f"start no more than {math.ceil(cpu.quota)} threads (OMP_NUM_THREADS): OpenMP does not look at the quota",
        )
    elif cpu.cpus_allowed and cpu.cpus_online and cpu.cpus_allowed < cpu.cpus_online:
        yield _build_finding(
            "cpu-affinity",
            "info",
            f"this process may use {cpu.cpus_allowed} of {cpu.cpus_online} CPUs",
            f"cpus_allowed {cpu.cpus_allowed}",
            "ask the scheduler for more, if loading data is what limits",
        )


def check_host_memory(hw: Hardware) -> Iterator[Finding]:
    memory = hw.memory
    if memory.shm_bytes is not None and memory.shm_bytes < SHM_NEEDED_BYTES:
        yield _build_finding(
            "shm-small",
            "warning",
            f"/dev/shm has {memory.shm_bytes / (1 << 20):.0f} MiB",
            f"shm_bytes {memory.shm_bytes}",
            "start the container with --shm-size=8g (or --ipc=host): loader workers and NCCL need it",
        )
    if memory.swap_used_bytes and memory.total_bytes and memory.swap_used_bytes > 0.01 * memory.total_bytes:
        yield _build_finding(
            "swap-in-use",
            "warning",
            f"{memory.swap_used_bytes / GIB:.1f} GiB of memory are swapped out",
            f"swap_used_bytes {memory.swap_used_bytes}",
            "end other programs: swapping makes steps many times slower",
        )
    if memory.limit_bytes and memory.total_bytes and memory.limit_bytes < memory.total_bytes:
        yield _build_finding(
            "memory-limit",
            "info",
            f"a limit of {memory.limit_bytes / GIB:.1f} GiB holds here, of {memory.total_bytes / GIB:.1f} GiB in the machine",
            f"limit_bytes {memory.limit_bytes}",
            "beyond it the kernel kills the process: plan host memory by the limit",
        )


def check_process_limits(hw: Hardware) -> Iterator[Finding]:
    locked = hw.memory.lockable_bytes
    fabric = [
        p.name for p in hw.network if p.kind in ("infiniband", "roce", "efa") and p.state in (None, "active", "up")
    ]
    if locked is not None and locked < LOCKED_NEEDED_BYTES and fabric:
        yield _build_finding(
            "memlock-small",
            "warning",
            f"this process may lock {locked / (1 << 20):.0f} MiB of memory, and RDMA locks every buffer",
            f"lockable_bytes {locked}; ports {', '.join(fabric[:4])}",
            "ulimit -l unlimited (memlock in /etc/security/limits.conf; docker run --ulimit memlock=-1; in Slurm "
            "PropagateResourceLimitsExcept=MEMLOCK): what cannot be locked cannot be registered",
        )
    files, cpus = hw.software.open_files, hw.cpu.budget or 1
    needed = max(OPEN_FILES_NEEDED, OPEN_FILES_PER_WORKER * cpus)
    if files is not None and files < needed:
        most = hw.software.open_files_most
        further = (
            "an administrator must raise the hard limit too" if most is not None and most < needed else "it may be"
        )
        yield _build_finding(
            "open-files-few",
            "warning" if files < OPEN_FILES_NEEDED else "info",
            f"a process may have {files} files open; a loader with {cpus} workers takes up to {needed}",
            f"open_files {files}, open_files_most {most if most is not None else 'unlimited'}",
            f"ulimit -n {max(needed, 65_536)} ({further}; docker run --ulimit nofile=65536): loader workers share each "
            "tensor by an open file",
        )


def check_disks(hw: Hardware) -> Iterator[Finding]:
    kinds = {disk.kind for disk in hw.disks}
    if hw.disks and hw.accelerators and not kinds & {"nvme", None}:
        yield _build_finding(
            "no-nvme",
            "info",
            "no working folder is on NVMe",
            ", ".join(f"{disk.role}: {disk.kind}" for disk in hw.disks),
            "offloading to disk will be slow: plan without it, or give a folder on NVMe",
        )
    for disk in hw.disks:
        if disk.kind == "network" and disk.role == "work":
            yield _build_finding(
                "network-disk",
                "info",
                "the working folder is on a network file system",
                f"{disk.path}",
                "copy the data to a local disk first, if the loader waits for it",
            )


RULES: tuple[Callable[[Hardware], Iterator[Finding]], ...] = (
    check_driver_answers,
    check_board_states,
    check_driver,
    check_memory_errors,
    check_partitions,
    check_virtual_boards,
    check_pcie_links,
    check_power_and_heat,
    check_peer_access,
    check_mixed_boards,
    check_memory_in_use,
    check_network_ports,
    check_processors,
    check_host_memory,
    check_process_limits,
    check_disks,
)
