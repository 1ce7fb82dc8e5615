"""CPUs, cores, packages, NUMA nodes and caches from /sys, as sets of online CPUs.

Numbers like ``core_id`` repeat between dies and clusters and are never used: cores and packages are distinct sets of
CPUs that the kernel calls siblings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hwdetect.machine import Machine
from hwdetect.probes.lists import cpu_list, cpu_mask
from hwdetect.probes.reading import Notes, whole
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
    online = _online(machine)
    if online is None:
        return Topology()
    return Topology(
        online=online,
        cores=_distinct(machine, online, CORE_FILES, notes, "cpu.cores"),
        packages=_packages(machine, online, notes),
        nodes_with_cpus=_nodes_with_cpus(machine, online),
        caches=_caches(machine, online),
        core_kinds=_core_kinds(machine, online),
        max_hz=_max_hz(machine, online),
    )


def _online(machine: Machine) -> frozenset[int] | None:
    listed = cpu_list(machine.read(f"{CPUS}/online"))
    if listed:
        return listed
    names = (re.fullmatch(r"cpu(\d{1,6})", name) for name in machine.listing(CPUS))
    numbers = [int(match.group(1)) for match in names if match]
    # CPU 0 of many machines cannot be switched off and has no such file.
    up = frozenset(n for n in numbers if (machine.read(f"{CPUS}/cpu{n}/online") or "1").strip() != "0")
    return up or None


def _siblings(machine: Machine, cpu: int, files: tuple[str, ...]) -> frozenset[int] | None:
    for name in files:
        parse: Callable[[str | None], frozenset[int] | None] = cpu_list if name.endswith("_list") else cpu_mask
        found = parse(machine.read(f"{CPUS}/cpu{cpu}/topology/{name}"))
        if found:
            return found
    return None


def _distinct(machine: Machine, online: frozenset[int], files: tuple[str, ...], notes: Notes, field: str) -> int | None:
    """How many different sets of online CPUs the siblings files name."""
    sets = [_siblings(machine, cpu, files) for cpu in sorted(online)]
    known = {found & online for found in sets if found}
    if not known:
        notes.add(field, "sysfs", f"no {files[0]} or like file under {CPUS}/cpu*/topology")
        return None
    missing = sum(1 for found in sets if not found)
    if missing:
        notes.add(field, "sysfs", f"{missing} of {len(online)} online CPUs have no readable {files[0]}")
    return len(known)


def _packages(machine: Machine, online: frozenset[int], notes: Notes) -> int | None:
    ids = [whole(machine.read(f"{CPUS}/cpu{cpu}/topology/physical_package_id")) for cpu in sorted(online)]
    if ids and all(i == -1 for i in ids):
        notes.add("cpu.packages", "sysfs", "the kernel gives package id -1: it does not know")
        return None
    return _distinct(machine, online, PACKAGE_FILES, notes, "cpu.packages")


def node_cpus(machine: Machine, node: int) -> frozenset[int] | None:
    """The CPUs of a NUMA node, from its list or its mask."""
    cpus = cpu_list(machine.read(f"{NODES}/node{node}/cpulist"))
    return cpus if cpus is not None else cpu_mask(machine.read(f"{NODES}/node{node}/cpumap"))


def node_numbers(machine: Machine) -> tuple[int, ...]:
    """The NUMA nodes that have a folder, with whatever gaps."""
    names = (re.fullmatch(r"node(\d{1,6})", name) for name in machine.listing(NODES))
    return tuple(sorted(int(match.group(1)) for match in names if match))


def _nodes_with_cpus(machine: Machine, online: frozenset[int]) -> int | None:
    nodes = node_numbers(machine)
    if not nodes:
        return None
    sets = {cpus & online for node in nodes if (cpus := node_cpus(machine, node))}
    return len(sets - {frozenset()}) or None


def _caches(machine: Machine, online: frozenset[int]) -> tuple[Cache, ...] | None:
    """Caches by level and kind: the size of the first and how many. A CPU inside a set already seen is not read."""
    covered: dict[tuple[str, str], set[int]] = {}
    found: dict[tuple[int, str], list[int | None]] = {}
    slots = [name for name in machine.listing(f"{CPUS}/cpu{min(online)}/cache") if name.startswith("index")]
    for slot in slots:
        for cpu in sorted(online):
            if cpu in covered.setdefault((slot, ""), set()):
                continue
            folder = f"{CPUS}/cpu{cpu}/cache/{slot}"
            level, kind = whole(machine.read(f"{folder}/level")), (machine.read(f"{folder}/type") or "").strip()
            if level is None or not kind:
                continue
            shared = cpu_list(machine.read(f"{folder}/shared_cpu_list"))
            shared = shared or cpu_mask(machine.read(f"{folder}/shared_cpu_map")) or frozenset({cpu})
            covered[(slot, "")] |= shared
            found.setdefault((level, kind.lower()), []).append(cache_bytes(machine.read(f"{folder}/size")))
    return (
        tuple(
            Cache(level=level, kind=kind, size_bytes=max((s for s in sizes if s), default=None), count=len(sizes))
            for (level, kind), sizes in sorted(found.items())
        )
        or None
    )


def cache_bytes(text: str | None) -> int | None:
    """Bytes of ``32K``, ``24M`` or a plain number."""
    match = re.fullmatch(r"(\d{1,9})([KMG]?)", (text or "").strip())
    return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)] if match else None


def _core_kinds(machine: Machine, online: frozenset[int]) -> tuple[CoreKind, ...] | None:
    """Kinds of cores of a hybrid chip, from Intel's device folders or the kernel's relative capacities."""
    intel = [(name, cpu_list(machine.read(f"sys/devices/cpu_{name}/cpus"))) for name in ("core", "atom", "lowpower")]
    named = [CoreKind(name=name, cpus=len(cpus & online)) for name, cpus in intel if cpus and cpus & online]
    if len(named) > 1:
        return tuple(named)
    capacities = [whole(machine.read(f"{CPUS}/cpu{cpu}/cpu_capacity")) for cpu in sorted(online)]
    if capacities and capacities[0] is None:
        return None
    by_size = sorted({c for c in capacities if c is not None}, reverse=True)
    if len(by_size) < 2:
        return None
    return tuple(CoreKind(name=f"capacity {size}", cpus=capacities.count(size)) for size in by_size)


def _max_hz(machine: Machine, online: frozenset[int]) -> int | None:
    khz = whole(machine.read(f"{CPUS}/cpu{min(online)}/cpufreq/cpuinfo_max_freq"))
    return khz * 1000 if khz and khz > 0 else None
