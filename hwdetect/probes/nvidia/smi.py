"""NVIDIA boards from what nvidia-smi prints: its XML, else its indented text, completed by its lists and tables."""

from __future__ import annotations

import re
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes, note_cut, note_no_board
from hwdetect.probes.nvidia.smi_tables import (
    add_lost_boards,
    add_places,
    list_instances,
    list_lost_boards,
    parse_capability,
    read_query_rows,
    read_short_answers,
)
from hwdetect.probes.nvidia.smi_topo import read_nvlink, read_topo
from hwdetect.probes.nvidia.smi_tree import Node, parse_indented, parse_xml
from hwdetect.probes.nvidia.smi_words import (
    NO_DEDICATED_MEMORY,
    get_reading,
    parse_address,
    parse_mebibytes,
    parse_pci_id,
    parse_switch,
    parse_version,
    parse_width,
)
from hwdetect.probes.parsing import clean_line, parse_integer, parse_number
from hwdetect.probes.partial import NOTHING, PartialHardware, is_usable, number_accelerators
from hwdetect.types import Accelerator, Board, Pcie, Software

WHO = "nvidia-smi"
SECONDS = 2.0


def read_nvidia_smi(machine: Machine, notes: Notes) -> PartialHardware:
    """Everything nvidia-smi can say; ``NOTHING`` with a note where it is not there or says nothing."""
    root, text = _read_log(machine, notes)
    if text is None:
        return NOTHING
    lost = list_lost_boards(text)
    if root is None or not root.every("gpu"):
        return read_short_answers(machine, lost, notes)
    boards, instances, free = [], [], []
    for index, gpu in enumerate(root.every("gpu")):
        board = _read_board(Gpu(index, gpu, notes))
        boards.append(board)
        instances.append(_list_instances(board, gpu))
        free.append(parse_mebibytes(gpu.at("fb_memory_usage/free")))
    complete = tuple(_add_query_rows(machine, boards, notes))
    topo = read_topo(machine, len(complete), notes)
    complete = read_nvlink(machine, add_places(complete, topo), notes)
    attached = parse_integer(root.at("attached_gpus"))
    if attached is not None and attached > len(complete):
        # Boards that fell off the bus are counted by the driver and left out of the log.
        notes.add("boards", WHO, f"the log says {attached} attached GPUs and describes {len(complete)}")
    return PartialHardware(
        boards=add_lost_boards(complete, lost),
        accelerators=_list_accelerators(machine, complete, instances, free, notes),
        links=topo.links,
        paths=topo.paths,
        software=Software(
            driver=parse_version(root.at("driver_version", "kmd_version")),
            cuda_driver=parse_version(root.at("cuda_version", "cuda_umd_version", "cuda_driver_version")),
        ),
    )


def _read_log(machine: Machine, notes: Notes) -> tuple[Node | None, str | None]:
    """The log as a tree, and the raw text (which may begin with lines about lost boards); no text where it hangs."""
    for argv, parse in ((("nvidia-smi", "-q", "-x"), parse_xml), (("nvidia-smi", "-q"), parse_indented)):
        output = machine.run(argv, SECONDS)
        if output.problem and output.problem not in ("not installed", "not in the recording"):
            notes.add("boards", " ".join(argv), output.problem)
            if output.problem.startswith("no answer"):
                return None, None  # the other forms would hang as well
        if output.text:
            parsed = parse(output.text)
            root, problem = parsed if isinstance(parsed, tuple) else (parsed, None)
            if problem:
                notes.add("boards", " ".join(argv), problem)
            else:
                note_cut(notes, "boards", " ".join(argv), output.text)
            if root is not None and root.every("gpu"):
                return root, output.text
            note_no_board(notes, " ".join(argv), output.text)
            if list_lost_boards(output.text):
                return root, output.text
    return None, ""


# What the tool prints in place of readings of a board that does not answer any more.
BAD_STATES = (
    ("gpu is lost", "lost"),
    ("gpu requires reset", "reset-required"),
    ("gpu access blocked", "blocked-by-system"),
)


class Gpu:
    """One board's part of the log: each text by the first of its places, and a note where it holds no reading."""

    def __init__(self, index: int, node: Node, notes: Notes):
        self.index, self.node, self.notes = index, node, notes

    def text(self, field: str, *paths: str) -> str | None:
        printed = self.node.at(*paths)
        value = get_reading(printed)
        if value is None and printed:
            self.notes.add(f"boards.{self.index}.{field}", WHO, f"says {clean_line(printed)}")
        return value

    def state(self) -> str:
        """ok, or what the tool says in place of readings."""
        # A lost board's log has a sentence in place of every reading.
        texts = [child.text.lower() for child in self.node.children if child.text]
        return next((state for beginning, state in BAD_STATES for text in texts if text.startswith(beginning)), "ok")


LINK = "pci/pci_gpu_link_info", "pci/gpu_link_info"
LIMITS = (
    "gpu_power_readings/current_power_limit",
    "power_readings/enforced_power_limit",
    "power_readings/power_limit",
    "gpu_power_readings/power_limit",
    "power_readings/current_power_limit",
)
DEFAULTS = "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"


def _read_board(gpu: Gpu) -> Board:
    name = gpu.text("name", "product_name")
    memory = parse_mebibytes(gpu.text("memory_bytes", "fb_memory_usage/total"))
    return Board(
        index=gpu.index,
        vendor="nvidia",
        name=name,
        uuid=gpu.text("uuid", "uuid", "gpu_uuid"),
        pci_id=parse_pci_id(gpu.text("pci_id", "pci/pci_device_id", "pci/device_id")),
        pci_address=parse_address(gpu.node.key or gpu.text("pci_address", "pci/pci_bus_id", "pci/bus_id")),
        architecture=gpu.text("architecture", "product_architecture"),
        memory_bytes=memory or None,
        mig_enabled=parse_switch(gpu.text("mig_enabled", "mig_mode/current_mig", "mig_mode/current")),
        unified_memory=True if not memory and NO_DEDICATED_MEMORY.search(name or "") else None,
        c2c=parse_switch(gpu.text("c2c", "c2c_mode", "gpu_c2c_mode")),
        power_limit_watts=parse_number(gpu.text("power_limit_watts", *LIMITS)),
        power_default_watts=parse_number(gpu.text("power_default_watts", *DEFAULTS)),
        temperature_c=parse_number(gpu.text("temperature_c", "temperature/gpu_temp", "temperature/gpu_current_temp")),
        throttle_reasons=_list_throttle_reasons(gpu.node),
        performance_state=parse_integer((gpu.node.at("performance_state") or "").removeprefix("P")),
        persistence=parse_switch(gpu.text("persistence", "persistence_mode")),
        ecc_enabled=parse_switch(gpu.text("ecc_enabled", "ecc_mode/current_ecc", "ecc_mode/current")),
        ecc_errors=_count_ecc_errors(gpu.node),
        repair_pending=_is_repair_pending(gpu.node),
        compute_mode=gpu.text("compute_mode", "compute_mode"),
        virtualization=_read_virtualization(gpu),
        state=gpu.state(),
        pcie=_read_pcie(gpu),
    )


def _read_pcie(gpu: Gpu) -> Pcie:
    def places(xml: str, text: str) -> tuple[str, ...]:
        return (f"{LINK[0]}/{xml}", f"{LINK[1]}/{xml}", f"{LINK[1]}/{text}")

    widths = "link_widths/current_link_width", "link_widths/max_link_width"
    return Pcie(
        generation=parse_integer(
            gpu.text("pcie.generation", *places("pcie_gen/current_link_gen", "pcie_generation/current"))
        ),
        generation_max=parse_integer(
            gpu.text("pcie.generation_max", *places("pcie_gen/max_link_gen", "pcie_generation/max"))
        ),
        width=parse_width(gpu.text("pcie.width", *places(widths[0], "link_width/current"))),
        width_max=parse_width(gpu.text("pcie.width_max", *places(widths[1], "link_width/max"))),
    )


# The indented text names two reasons otherwise than the XML and NVML.
THROTTLE_NAMES = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}


def _list_throttle_reasons(gpu: Node) -> tuple[str, ...] | None:
    """What slows the clocks down; ``None`` where the log does not speak of it."""
    holders = [n for n in (gpu.node("clocks_event_reasons"), gpu.node("clocks_throttle_reasons")) if n is not None]
    if not any(holder.children for holder in holders):
        return None
    active = {
        THROTTLE_NAMES.get(name := re.sub("^clocks_(event|throttle)_reason_", "", child.name), name)
        for holder in holders
        for parent in (holder, *holder.children)
        for child in parent.children
        if child.text == "Active"
    }
    return tuple(sorted(active))


def _count_ecc_errors(gpu: Node) -> int | None:
    """Uncorrectable errors since the last reset, ``None`` where the board does not count them."""
    volatile = gpu.node("ecc_errors/volatile")
    if volatile is None:
        return None
    # Newer drivers split DRAM and SRAM, newer ones still SRAM by cause: all of them are uncorrectable.
    counts = [parse_integer(get_reading(c.text)) for c in volatile.children if "uncorrectable" in c.name]
    counted = [count for count in counts if count is not None]
    return sum(counted) if counted else None


def _read_virtualization(gpu: Gpu) -> str | None:
    """The mode of a board in a virtual machine. "None" is an answer: the machine is a real one."""
    path = "gpu_virtualization_mode/virtualization_mode"
    return None if (gpu.node.at(path) or "").lower() == "none" else gpu.text("virtualization", path)


YES = {"yes": True, "no": False}
PENDING = (
    ("remapped_rows/remapped_row_pending", "remapped_rows/pending"),
    ("retired_pages/pending_retirement", "retired_pages/pending_page_blacklist", "retired_pages/pending"),
    # since driver 580 (Blackwell) and 615 (Rubin)
    ("ecc_errors/channel_repair_pending",),
    ("ecc_errors/tpc_repair_pending",),
    ("remapped_banks/bank_remapper_pending",),
)


def _is_repair_pending(gpu: Node) -> bool | None:
    """Whether rows or pages of memory wait for a reset to be taken out of use; ``None`` where the board does not say."""
    answers = [YES.get((get_reading(gpu.at(*places)) or "").lower()) for places in PENDING]
    known = [answer for answer in answers if answer is not None]
    return any(known) if known else None


def _list_instances(board: Board, gpu: Node) -> list[Accelerator]:
    """MIG devices of a board. Compute instances of one GPU instance share its memory slice."""
    nodes = gpu.every("mig_device")
    holder = gpu.node("mig_devices")
    nodes += holder.every("mig_device") if holder else []
    return [
        Accelerator(
            index=0,
            board=board.index,
            name=board.name,
            memory_bytes=parse_mebibytes(node.at("fb_memory_usage/total", "shared_fb_memory_usage/total")),
            free_memory_bytes=parse_mebibytes(node.at("fb_memory_usage/free", "shared_fb_memory_usage/free")),
            compute_units=parse_integer(
                get_reading(
                    node.at("device_attributes/shared/multiprocessor_count", "device_attributes/multiprocessor_count")
                )
            ),
            gpu_instance=parse_integer(get_reading(node.at("gpu_instance_id"))),
            compute_instance=parse_integer(get_reading(node.at("compute_instance_id"))),
            uuid=get_reading(node.at("uuid")),
        )
        for node in nodes
    ]


def _list_accelerators(
    machine: Machine,
    boards: tuple[Board, ...],
    instances: list[list[Accelerator]],
    free: list[int | None],
    notes: Notes,
) -> tuple[Accelerator, ...]:
    listed = list_instances(machine, notes) if any(board.mig_enabled for board in boards) else {}
    accelerators: list[Accelerator] = []
    for board, own, free_bytes in zip(boards, instances, free, strict=True):
        if not is_usable(board):
            notes.add(f"boards.{board.index}", WHO, f"not usable: {board.compute_mode or board.state}")
        elif board.mig_enabled:
            if not own:
                notes.add(f"boards.{board.index}", WHO, "MIG is on and has no instance: no job can use this board")
            names = listed.get(board.index, [])
            for place, instance in enumerate(own):
                profile, uuid = names[place] if place < len(names) else (None, instance.uuid)
                accelerators.append(replace(instance, profile=profile or instance.profile, uuid=uuid))
        else:
            accelerators.append(
                Accelerator(
                    index=0,
                    board=board.index,
                    name=board.name,
                    memory_bytes=board.memory_bytes,
                    free_memory_bytes=free_bytes,
                    uuid=board.uuid,
                    compute_share=1.0,
                )
            )
    return number_accelerators(tuple(accelerators))


def _add_query_rows(machine: Machine, boards: list[Board], notes: Notes) -> list[Board]:
    """Compute capability from the query table, and the PCIe generation under load where the recording has it."""
    rows = read_query_rows(machine, notes)
    loaded = None if machine.live else machine.read("nvidia-smi-q-load.txt")
    busy = parse_indented(loaded).every("gpu") if loaded else []
    done = []
    for place, board in enumerate(boards):
        row = next((r for r in rows if parse_address(r.get("pci.bus_id")) == board.pci_address), None)
        # Without an address in the table both list the boards in one order.
        if row is None and len(rows) == len(boards):
            row = rows[place]
        if row is not None:
            board = replace(board, compute_capability=parse_capability(row.get("compute_cap")))
        if place < len(busy):
            under_load = parse_integer(get_reading(busy[place].at("pci/gpu_link_info/pcie_generation/current")))
            board = replace(board, pcie=replace(board.pcie, generation_load=under_load))
        done.append(board)
    return done
