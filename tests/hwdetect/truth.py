"""Compares a ``Hardware`` with a row of a truth table, by the rules of the tables' README. Returns what disagrees."""

from __future__ import annotations

import re
from collections import Counter

from hwdetect.types import Hardware

FEATURES = frozenset(
    [
        "avx2",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "neon",
        "asimd",
        "sve",
        "sve2",
        "bf16",
        "i8mm",
        "sme",
    ]
)
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
DIRECT = ("xgmi", "nvlink")


def disagreements(table: str, row: dict[str, str], hw: Hardware) -> list[str]:
    """One line for every non-empty cell of the row that the Hardware does not bear out."""
    checks = {
        "TRUTH.csv": SYSROOT,
        "TRUTH_ISA.csv": ISA,
        "TRUTH_TOPO.csv": TOPO,
        "TRUTH_GPU.csv": GPU,
        "TRUTH_SYSTEMS.csv": SYSTEMS,
    }
    wrong = []
    for column, check in checks[table].items():
        if row[column] and not check(row[column], hw, row):
            wrong.append(f"{column}: the table says {row[column]!r}")
        wrong += unsaid(column, row[column], hw)
    return wrong


# Where the fields are whose columns may say ``none``: null then, "with a note".
FIELDS = {
    "packages": "cpu.packages",
    "cores": "cpu.cores",
    "cores_machine": "cpu.cores",
    "cpus_online": "cpu.cpus_online",
    "cpus_allowed": "cpu.cpus_allowed",
    "numa_nodes_with_cpus": "cpu.numa_nodes",
    "numa_nodes_memory": "memory.numa_nodes",
    "numa_nodes": "memory.numa_nodes",
    "mem_total_bytes": "memory.total_bytes",
    "memory_bytes": "memory.total_bytes",
    "model_name": "cpu.model_name",
    "name": "boards.0.name",
    "memory_mib": "boards.0.memory_bytes",
    "pcie_gen_current": "boards.0.pcie.generation",
    "pcie_gen_max": "boards.0.pcie.generation_max",
    "pcie_width_current": "boards.0.pcie.width",
    "pcie_width_max": "boards.0.pcie.width_max",
    "mig": "boards.0.mig_enabled",
}


def unsaid(column: str, cell: str, hw: Hardware) -> list[str]:
    """A line if the cell allows null, the reading is null, and no note tells why."""
    if "none" not in cell.split("|") or column not in FIELDS:
        return []
    value: object = hw
    for part in FIELDS[column].split("."):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    spoken = {note.field for note in hw.notes}
    silent = value is None and not any(f"{FIELDS[column]}.".startswith(f"{field}.") for field in spoken)
    return [f"{column}: null without a note"] if silent else []


def columns_compared(table: str) -> set[str]:
    return set(
        {
            "TRUTH.csv": SYSROOT,
            "TRUTH_ISA.csv": ISA,
            "TRUTH_TOPO.csv": TOPO,
            "TRUTH_GPU.csv": GPU,
            "TRUTH_SYSTEMS.csv": SYSTEMS,
        }[table]
    )


def same(cell: str, value: object) -> bool:
    """``a|b``: either; ``none``: null."""
    return str(value if value is not None else "none") in cell.split("|")


def number(path: str):
    def check(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
        value: object = hw
        for part in path.split("."):
            value = getattr(value, part)
        return same(cell, value)

    return check


def contains(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    answer = " ".join((hw.cpu.model_name or "none").split()).lower()
    return any(" ".join(part.split()).lower() in answer for part in cell.split("|"))


def architecture(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    return same(cell, ARCHITECTURES.get(hw.cpu.architecture or "", hw.cpu.architecture))


def features(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    wanted = set() if cell == "-" else set(cell.split())
    return set(hw.cpu.isa_features or ()) & FEATURES == wanted


def microarchitecture(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    if not row["id"].startswith("pc-"):
        return hw.cpu.microarchitecture == cell
    # Of phones the table names the kinds of cores; those of x86 phones have archspec's name only by their features.
    if hw.cpu.architecture in ("x86_64", "i686"):
        return hw.cpu.model_name is not None
    if hw.cpu.core_kinds is None:  # a file without part numbers: null, and a note that says so
        return any(note.field == "cpu.core_kinds" for note in hw.notes)
    named = {kind.name for kind in hw.cpu.core_kinds}
    return named == set(cell.replace("-", "_").split())


SYSROOT = {
    "packages": number("cpu.packages"),
    "cores_machine": number("cpu.cores"),
    "cpus_online": number("cpu.cpus_online"),
    "cpus_allowed": number("cpu.cpus_allowed"),
    "cpu_quota": number("cpu.quota"),
    "numa_nodes_with_cpus": number("cpu.numa_nodes"),
    "numa_nodes_memory": number("memory.numa_nodes"),
    "numa_nodes_gpu_memory": number("memory.gpu_numa_nodes"),
    "mem_total_bytes": number("memory.total_bytes"),
    "model_name": contains,
    "arch": architecture,
    "isa_features": features,
}
ISA = {
    "microarchitecture": microarchitecture,
    "isa_features": features,
    "model_name": contains,
    "cpus_listed": number("cpu.cpus_listed"),
}


def accelerators(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    wanted = Counter()
    for part in cell.split("; "):
        count, what = part.split("x ", 1)
        wanted[what] += int(count)
    return wanted == Counter(board.name or f"pci {board.pci_id}" for board in hw.boards)


TOPO = {
    "packages": number("cpu.packages"),
    "cores": number("cpu.cores"),
    "pus": number("cpu.cpus_online"),
    "numa_nodes": number("memory.numa_nodes"),
    "memory_bytes": number("memory.total_bytes"),
    "model_name": contains,
    "isa_features": features,
    "accelerators": accelerators,
}


def every_board(value):
    """Holds for each board; a table of one recording has one value for all its boards."""

    def check(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
        return bool(hw.boards) and all(same(cell, value(board)) for board in hw.boards)

    return check


def mebibytes(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    return all(same(cell, b.memory_bytes >> 20 if b.memory_bytes else None) for b in hw.boards)


def mig(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    wanted = {"none": None, "disabled": False, "enabled": True}[cell]
    return all(board.mig_enabled is wanted for board in hw.boards)


def mig_instances(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    described = [
        f"{a.profile} gi{a.gpu_instance}/ci{a.compute_instance} {a.compute_units}sm {(a.memory_bytes or 0) >> 20}MiB"
        for a in hw.accelerators
    ]
    return described == cell.split("; ")


def generation(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    return all(
        same(cell, board.pcie.generation)
        and (board.pcie.generation_load is None or same(cell, board.pcie.generation_load))
        for board in hw.boards
    )


def links(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    """The forms that the column has, each with its own meaning."""
    if cell.startswith("xgmi:") or cell in ("none", "nvlink: none") or cell.startswith(("PCIE", "not described")):
        return _counted_links(cell, hw)
    board = hw.boards[0]
    if active := re.fullmatch(r"nvlink: (\d+) active links of ([\d.]+) GB/s", cell):
        rate = int(active.group(1)) * float(active.group(2)) * 1e9
        return board.nvlinks_active == int(active.group(1)) and abs((board.nvlink_bytes_per_s or 0) - rate) < 1
    if cell == "nvlink: present, all links inactive":
        return board.nvlinks_active == 0 and not hw.links
    assert cell == "nvlink: cannot be read in MIG mode", cell
    return board.nvlinks_active is None and any("MIG" in note.why for note in hw.notes)


def _counted_links(cell: str, hw: Hardware) -> bool:
    direct = [link for link in hw.links if link.kind in DIRECT]
    if pairs := re.match(r"PCIE: (\d+) pairs", cell):
        return len([link for link in hw.links if link.kind == "pcie"]) == int(pairs.group(1)) and not direct
    if not cell.startswith("xgmi:"):
        return not direct and all(not board.nvlinks_active for board in hw.boards)
    count, total = map(int, re.match(r"xgmi: (\d+) of (\d+)", cell).groups())
    boards = len(hw.boards)
    groups = re.search(r"(?:groups|hives of boards) ([\d+]+)", cell)
    sizes = sorted(map(int, groups.group(1).split("+"))) if groups else None
    return (
        all(link.kind == "xgmi" for link in direct)
        and len(direct) == count
        and boards * (boards - 1) // 2 == total
        and (sizes is None or sorted(_groups(hw)) == sizes)
    )


def _groups(hw: Hardware) -> list[int]:
    """Sizes of the sets of boards that direct links connect."""
    group = {board.index: {board.index} for board in hw.boards}
    for link in hw.links:
        if link.kind in DIRECT and group[link.a] is not group[link.b]:
            joined = group[link.a] | group[link.b]
            for member in joined:
                group[member] = joined
    return [len(members) for members in {id(m): m for m in group.values()}.values()]


def link_pairs(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    return cell.split() == [f"{k.a}-{k.b}:{k.count}" for k in hw.links if k.kind in DIRECT]


def nics(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    """``4: 4x 200 Gb/s (a b c d)``, ``4: 4x pci class 0x020000``, or a list in words."""
    if named := re.match(r"(\d+) InfiniBand ports: (.*), all ACTIVE; eth0 1 Gb/s up", cell):
        wanted = {(n, float(rate)) for n, rate in re.findall(r"(\S+) ([\d.]+) Gb/s", named.group(2))}
        ports = [p for p in hw.network if p.kind == "infiniband"]
        rest = [p for p in hw.network if p.kind != "infiniband"]
        return (
            len(ports) == int(named.group(1))
            and {(p.name, gigabits(p)) for p in ports} == wanted
            and all(p.state == "active" for p in ports)
            and [(p.name, gigabits(p), p.state) for p in rest] == [("eth0", 1.0, "active")]
        )
    total, rest = cell.split(": ", 1)
    if len(hw.network) != int(total):
        return False
    if kind := re.search(r"pci class (0x\d{6})", rest):
        return kind.group(1) != "0x020700" or all(p.kind == "infiniband" for p in hw.network)
    rates = Counter()
    for count, rate in re.findall(r"(\d+)x (\d+) Gb/s", rest):
        rates[float(rate)] += int(count)
    names = set(re.search(r"\((.*)\)", rest).group(1).split())
    return rates == Counter(gigabits(p) for p in hw.network) and names == {p.name for p in hw.network}


def gigabits(port) -> float | None:
    return None if port.rate_bytes_per_s is None else port.rate_bytes_per_s * 8 / 1e9


GPU = {
    "count": lambda cell, hw, row: same(cell, len(hw.boards)),
    "addressable": lambda cell, hw, row: same(cell, len(hw.accelerators)),
    "name": every_board(lambda board: board.name),
    "memory_mib": mebibytes,
    "compute_capability": every_board(lambda board: board.compute_capability),
    "mig": mig,
    "mig_instances": mig_instances,
    "pcie_gen_current": generation,
    "pcie_gen_max": every_board(lambda board: board.pcie.generation_max),
    "pcie_width_current": every_board(lambda board: board.pcie.width),
    "pcie_width_max": every_board(lambda board: board.pcie.width_max),
    "links": links,
    "pairs": link_pairs,
    "nics": nics,
    "driver": number("software.driver"),
}


def device(cell: str, hw: Hardware, row: dict[str, str]) -> bool:
    """``H200-SXM``: the catalogue's id begins with it."""
    return bool(hw.boards) and all((board.device or "").startswith(cell.lower()) for board in hw.boards)


SYSTEMS = {
    "nodes": number("nodes.count"),
    "accelerators_per_node": lambda cell, hw, row: same(cell, len(hw.accelerators)),
    "device": device,
    "host_cpu": contains,
    "sockets": number("cpu.packages"),
}
