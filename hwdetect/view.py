"""A machine as a person wants to see it: a tree, the link matrix, then what is wrong with it."""

from __future__ import annotations

from collections import Counter

from hwdetect.types import Accelerator, Board, Hardware

GIB = 1 << 30
COLORS = {"error": "31", "warning": "33", "info": "36", "bold": "1", "dim": "2"}
MAX_MATRIX = 16  # boards; wider matrices do not fit a terminal


def render(hardware: Hardware, color: bool = False) -> str:
    """The whole view as text, without a newline at the end."""
    sections = [
        _render_tree(hardware, color),
        _render_matrix(hardware),
        _render_measured(hardware),
        _render_findings(hardware, color),
        _render_notes(hardware, color),
    ]
    return "\n\n".join(section for section in sections if section)


def _paint(text: str, style: str, color: bool) -> str:
    return f"\x1b[{COLORS[style]}m{text}\x1b[0m" if color else text


def _format_gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def _render_tree(hw: Hardware, color: bool) -> str:
    nodes = f"{hw.nodes.count} nodes ({hw.nodes.source}), each" if hw.nodes.count > 1 else "Machine"
    branches = [
        *_list_cpu(hw),
        *_list_memory(hw),
        *_list_boards(hw),
        *_list_network(hw),
        *_list_disks(hw),
        *_list_software(hw),
    ]
    lines = [_paint(nodes, "bold", color)]
    for place, (text, children) in enumerate(branches):
        last = place == len(branches) - 1
        lines.append(f"{'└─' if last else '├─'} {text}")
        for number, child in enumerate(children):
            lines.append(f"{'  ' if last else '│ '} {'└─' if number == len(children) - 1 else '├─'} {child}")
    return "\n".join(lines)


Branch = tuple[str, list[str]]


def _list_cpu(hw: Hardware) -> list[Branch]:
    cpu = hw.cpu
    name = cpu.model_name or cpu.vendor or "unknown processor"
    kind = ", ".join(part for part in (cpu.architecture, cpu.microarchitecture) if part)
    counts = [
        f"{count} {word}"
        for count, word in (
            (cpu.packages, "packages"),
            (cpu.cores, "cores"),
            (cpu.cpus_online, "CPUs online"),
            (cpu.cpus_allowed, "allowed"),
            (cpu.numa_nodes, "NUMA nodes"),
        )
        if count is not None
    ]
    children = [", ".join(counts)] if counts else []
    quota = f" (quota {cpu.quota:g})" if cpu.quota is not None else ""
    if cpu.budget is not None:
        children.append(f"budget: {cpu.budget} CPUs{quota}")
    if cpu.core_kinds and len(cpu.core_kinds) > 1:
        children.append("kinds: " + ", ".join(f"{k.cpus or '?'}× {k.name}" for k in cpu.core_kinds))
    if cpu.isa_features:
        children.append("instructions: " + " ".join(cpu.isa_features))
    if cpu.caches:
        children.append(
            "caches: "
            + ", ".join(
                f"L{c.level} {c.kind} {c.count or '?'}× {c.size_bytes >> 10 if c.size_bytes else '?'} KiB"
                for c in cpu.caches
            )
        )
    return [(f"CPU  {name}" + (f" ({kind})" if kind else ""), children)]


def _list_memory(hw: Hardware) -> list[Branch]:
    memory = hw.memory
    children = []
    if memory.available_bytes is not None:
        children.append(f"available: {_format_gib(memory.available_bytes)}")
    if memory.limit_bytes is not None:
        children.append(f"limit of the control group: {_format_gib(memory.limit_bytes)}")
    if memory.shm_bytes is not None:
        children.append(f"/dev/shm: {_format_gib(memory.shm_bytes)}")
    if memory.swap_total_bytes:
        children.append(f"swap: {_format_gib(memory.swap_used_bytes)} of {_format_gib(memory.swap_total_bytes)} in use")
    if memory.numa_nodes and memory.numa_nodes > 1:
        children.append(f"{memory.numa_nodes} NUMA nodes with memory")
    return [(f"Memory  {_format_gib(memory.total_bytes)}", children)]


def _list_boards(hw: Hardware) -> list[Branch]:
    if not hw.boards:
        return [("Accelerators  none", [])]
    alike = Counter((b.name or b.device or "unknown", b.memory_bytes) for b in hw.boards)
    title = ", ".join(f"{n}× {name} ({_format_gib(size)})" for (name, size), n in alike.items())
    children = [
        line
        for board in hw.boards
        for line in _describe_board(board, [a for a in hw.accelerators if a.board == board.index])
    ]
    return [(f"Accelerators  {title}", children)]


def _describe_board(board: Board, own: list[Accelerator]) -> list[str]:
    pcie = board.pcie
    link = f"PCIe {pcie.generation or '?'}/{pcie.generation_max or '?'} x{pcie.width or '?'}/{pcie.width_max or '?'}"
    facts = [
        board.device or "not in the catalogue",
        f"compute capability {board.compute_capability}" if board.compute_capability else None,
        link if pcie.width or pcie.generation else None,
        f"NUMA node {board.numa_node}" if board.numa_node is not None else None,
        f"{board.power_limit_watts:.0f} W" if board.power_limit_watts else None,
        f"{board.nvlinks_active} NVLinks" if board.nvlinks_active else None,
        "unified memory" if board.unified_memory else None,
        "integrated" if board.integrated else None,
        f"state: {board.state}" if board.state not in (None, "ok") else None,
    ]
    lines = [f"{board.index}: {board.name or board.vendor}: " + ", ".join(fact for fact in facts if fact)]
    for a in own:
        if a.profile:
            lines.append(
                f"   {a.index}: {a.profile}, {_format_gib(a.memory_bytes)}, {_format_gib(a.free_memory_bytes)} free"
            )
        elif a.free_memory_bytes is not None:
            lines[0] += f", {_format_gib(a.free_memory_bytes)} free"
    return lines


def _list_network(hw: Hardware) -> list[Branch]:
    if not hw.network:
        return []
    lines = [
        f"{p.name}: {p.kind}"
        + (f", {p.rate_bytes_per_s * 8 / 1e9:g} Gb/s" if p.rate_bytes_per_s else "")
        + (f", {p.state}" if p.state else "")
        for p in hw.network
    ]
    return [(f"Network  {len(hw.network)} ports", lines)]


def _list_disks(hw: Hardware) -> list[Branch]:
    lines = [f"{d.role}: {d.path} ({d.kind or 'kind unknown'}), {_format_gib(d.free_bytes)} free" for d in hw.disks]
    return [("Disks", lines)] if lines else []


def _list_software(hw: Hardware) -> list[Branch]:
    soft = hw.software
    lines = [
        f"{label}: {value}"
        for label, value in (
            ("system", soft.os),
            ("kernel", soft.kernel),
            ("driver", soft.driver and f"{soft.driver}" + (f" (CUDA {soft.cuda_driver})" if soft.cuda_driver else "")),
            ("Python", soft.python),
            ("packages", ", ".join(f"{n} {v}" for n, v in soft.packages)),
            ("container", soft.container if soft.container != "none" else None),
            ("virtual machine", soft.virtualization if soft.virtualization != "none" else None),
            ("visible devices", soft.visible_devices),
        )
        if value
    ]
    return [("Software", lines)] if lines else []


def _render_matrix(hw: Hardware) -> str:
    """Links between boards as ``nvidia-smi topo`` shows them: NV18, XGMI, PIX, SYS."""
    numbers = sorted({end for link in hw.links for end in (link.a, link.b)})
    if not numbers or len(numbers) > MAX_MATRIX:
        return f"{len(hw.links)} links between {len(numbers)} boards" if numbers else ""
    cells = {}
    for link in hw.links:
        name = {"nvlink": "NV"}.get(link.kind, link.kind.upper())
        text = f"{name}{link.count or ''}" + ("!" if link.p2p is False else "")
        cells[link.a, link.b] = cells[link.b, link.a] = text
    width = max(5, *(len(text) for text in cells.values())) + 1
    rows = ["Links" + " " * max(0, width - 5) + "".join(f"{n:>{width}}" for n in numbers)]
    for a in numbers:
        rows.append(
            f"{a:>{max(width, 5)}}" + "".join(f"{'X' if a == b else cells.get((a, b), '·'):>{width}}" for b in numbers)
        )
    if any(link.p2p is False for link in hw.links):
        rows.append("! no peer access")
    return "\n".join(rows)


def _render_measured(hw: Hardware) -> str:
    if not hw.measured:
        return ""
    scale = {"flop/s": (1e12, "TFLOP/s"), "bytes/s": (1e9, "GB/s")}
    guest = " (in a virtual machine: its neighbours are not seen, and have a part in it)"
    lines = [f"Measured{guest if hw.software.is_virtual else ''}"]
    for m in hw.measured:
        unit, name = scale.get(m.unit, (1.0, m.unit))
        what = f"{m.what.replace('_', ' ')}{f' {m.dtype}' if m.dtype else ''}{f', {m.size} rows' if m.size else ''}"
        unsteady = f" (unsteady: {m.spread:.0%} apart)" if m.unsteady and m.spread else ""
        lines.append(f"   {m.where}: {what}: {m.value / unit:.3g} {name}{unsteady}")
    return "\n".join(lines)


def _render_findings(hw: Hardware, color: bool) -> str:
    if not hw.findings:
        return "Findings: none"
    lines = ["Findings"]
    for finding in hw.findings:
        lines.append(f"{_paint(finding.severity, finding.severity, color)}: {finding.what}")
        lines.append(f"   seen: {finding.evidence}")
        lines.append(f"   do:   {finding.action}")
    return "\n".join(lines)


def _render_notes(hw: Hardware, color: bool) -> str:
    if not hw.notes:
        return ""
    # Eight boards that cannot say one thing are one line.
    grouped = Counter((_mask_numbers(note.field), note.who, note.why) for note in hw.notes)
    lines = [f"Not read ({len(hw.notes)})"]
    for (field, who, why), count in grouped.items():
        times = f" ({count}×)" if count > 1 else ""
        lines.append(_paint(f"   {field}: {who}: {why}{times}", "dim", color))
    return "\n".join(lines)


def _mask_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
