"""CPUs, cores, packages, NUMA nodes and caches from /sys, as sets of online CPUs.

Numbers like ``core_id`` repeat between dies and clusters and are never used: cores and packages are distinct sets of
CPUs that the kernel calls siblings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hwdetect.machine.cpu_lists import parse_cpu_list, parse_cpu_mask
from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import parse_integer
from hwdetect.types import Cache, CoreKind

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
CORE_FILES = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
PACKAGE_FILES = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sets of online CPUs. ``None`` where the kernel does not say."""

    online: frozenset[int] | None = None
    cores: int | None = None
    packages: int | None = None
    nodes_with_cpus: int | None = None
    caches: tuple[Cache, ...] | None = None
    core_kinds: tuple[CoreKind, ...] | None = None
    max_hz: int | None = None


def read_topology(machine: Machine, notes: Notes) -> Topology:
    """Everything that /sys says about the processors of the machine (whatever this process may use of it)."""
    online = _list_online(machine)
    if online is None:
        return Topology()
    return Topology(
        online=online,
        cores=_count_distinct(machine, online, CORE_FILES, notes, "cpu.cores"),
        packages=_count_packages(machine, online, notes),
        nodes_with_cpus=_count_nodes_with_cpus(machine, online),
        caches=_read_caches(machine, online),
        core_kinds=_read_core_kinds(machine, online),
        max_hz=_read_max_hz(machine, online),
    )


def _list_online(machine: Machine) -> frozenset[int] | None:
    listed = parse_cpu_list(machine.read(f"{CPUS}/online"))
    if listed:
        return listed
    names = (re.fullmatch(r"cpu(\d{1,6})", name) for name in machine.list_folder(CPUS))
    numbers = [int(match.group(1)) for match in names if match]
    # CPU 0 of many machines cannot be switched off and has no such file.
    up = frozenset(n for n in numbers if (machine.read(f"{CPUS}/cpu{n}/online") or "1").strip() != "0")
    return up or None


def _read_siblings(machine: Machine, cpu: int, files: tuple[str, ...]) -> frozenset[int] | None:
    for name in files:
        parse: Callable[[str | None], frozenset[int] | None] = (
            parse_cpu_list if name.endswith("_list") else parse_cpu_mask
        )
        siblings = parse(machine.read(f"{CPUS}/cpu{cpu}/topology/{name}"))
        if siblings:
            return siblings
    return None


def _count_distinct(
    machine: Machine, online: frozenset[int], files: tuple[str, ...], notes: Notes, field: str
) -> int | None:
    """How many different sets of online CPUs the siblings files name."""
    sets = [_read_siblings(machine, cpu, files) for cpu in sorted(online)]
    known = {siblings & online for siblings in sets if siblings}
    if not known:
        notes.add(field, "sysfs", f"no {files[0]} or like file under {CPUS}/cpu*/topology")
        return None
    missing = sum(1 for siblings in sets if not siblings)
    if missing:
        notes.add(field, "sysfs", f"{missing} of {len(online)} online CPUs have no readable {files[0]}")
    return len(known)


def _count_packages(machine: Machine, online: frozenset[int], notes: Notes) -> int | None:
    ids = [parse_integer(machine.read(f"{CPUS}/cpu{cpu}/topology/physical_package_id")) for cpu in sorted(online)]
    if ids and all(i == -1 for i in ids):
        notes.add("cpu.packages", "sysfs", "the kernel gives package id -1: it does not know")
        return None
    return _count_distinct(machine, online, PACKAGE_FILES, notes, "cpu.packages")


def read_node_cpus(machine: Machine, node: int) -> frozenset[int] | None:
    """The CPUs of a NUMA node, from its list or its mask."""
    cpus = parse_cpu_list(machine.read(f"{NODES}/node{node}/cpulist"))
    return cpus if cpus is not None else parse_cpu_mask(machine.read(f"{NODES}/node{node}/cpumap"))


def list_nodes(machine: Machine) -> tuple[int, ...]:
    """The NUMA nodes that have a folder, with whatever gaps."""
    names = (re.fullmatch(r"node(\d{1,6})", name) for name in machine.list_folder(NODES))
    return tuple(sorted(int(match.group(1)) for match in names if match))


def _count_nodes_with_cpus(machine: Machine, online: frozenset[int]) -> int | None:
    nodes = list_nodes(machine)
    if not nodes:
        return None
    sets = {cpus & online for node in nodes if (cpus := read_node_cpus(machine, node))}
    return len(sets - {frozenset()}) or None


def _read_caches(machine: Machine, online: frozenset[int]) -> tuple[Cache, ...] | None:
    """Caches by level and kind: the size of the first and how many. A CPU inside a set already seen is not read."""
    covered: dict[tuple[str, str], set[int]] = {}
    sizes_by_kind: dict[tuple[int, str], list[int | None]] = {}
    slots = [name for name in machine.list_folder(f"{CPUS}/cpu{min(online)}/cache") if name.startswith("index")]
    for slot in slots:
        for cpu in sorted(online):
            if cpu in covered.setdefault((slot, ""), set()):
                continue
            folder = f"{CPUS}/cpu{cpu}/cache/{slot}"
            level, kind = parse_integer(machine.read(f"{folder}/level")), (machine.read(f"{folder}/type") or "").strip()
            if level is None or not kind:
                continue
            shared = parse_cpu_list(machine.read(f"{folder}/shared_cpu_list"))
            # A cache that tells no sharer is the CPU's own.
            shared = shared or parse_cpu_mask(machine.read(f"{folder}/shared_cpu_map")) or frozenset({cpu})
            covered[(slot, "")] |= shared
            sizes_by_kind.setdefault((level, kind.lower()), []).append(
                parse_cache_bytes(machine.read(f"{folder}/size"))
            )
    return (
        tuple(
            Cache(level=level, kind=kind, size_bytes=max((s for s in sizes if s), default=None), count=len(sizes))
            for (level, kind), sizes in sorted(sizes_by_kind.items())
        )
        or None
    )


def parse_cache_bytes(text: str | None) -> int | None:
    """Bytes of ``32K``, ``24M`` or a plain number."""
    match = re.fullmatch(r"(\d{1,9})([KMG]?)", (text or "").strip())
    return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)] if match else None


def _read_core_kinds(machine: Machine, online: frozenset[int]) -> tuple[CoreKind, ...] | None:
    """Kinds of cores of a hybrid chip, from Intel's device folders or the kernel's relative capacities."""
    intel = [
        (name, parse_cpu_list(machine.read(f"sys/devices/cpu_{name}/cpus"))) for name in ("core", "atom", "lowpower")
    ]
    named = [CoreKind(name=name, cpus=len(cpus & online)) for name, cpus in intel if cpus and cpus & online]
    if len(named) > 1:
        return tuple(named)
    capacities = [parse_integer(machine.read(f"{CPUS}/cpu{cpu}/cpu_capacity")) for cpu in sorted(online)]
    if capacities and capacities[0] is None:
        return None
    # The kernel scales capacity so that the fastest core has 1024.
    by_size = sorted({c for c in capacities if c is not None}, reverse=True)
    if len(by_size) < 2:
        return None
    return tuple(CoreKind(name=f"capacity {size}", cpus=capacities.count(size)) for size in by_size)


def _read_max_hz(machine: Machine, online: frozenset[int]) -> int | None:
    # cpufreq counts in kHz.
    khz = parse_integer(machine.read(f"{CPUS}/cpu{min(online)}/cpufreq/cpuinfo_max_freq"))
    return khz * 1000 if khz and khz > 0 else None
