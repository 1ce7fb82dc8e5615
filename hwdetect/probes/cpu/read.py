"""The processor from every source there is, best first, and how much of it this process may use."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes.cgroup import Limits
from hwdetect.probes.cpu import cpuinfo, isa, microarchitecture
from hwdetect.probes.cpu import topology as cpu_topology
from hwdetect.probes.cpu.arm_cores import count_core_kinds
from hwdetect.probes.notes import Notes
from hwdetect.probes.partial import fill_unknown
from hwdetect.types import Cpu


def read_cpu(machine: Machine, limits: Limits, notes: Notes) -> Cpu:
    """/sys and /proc first, then raw CPUID, then macOS's sysctl; ``budget`` from affinity, cpuset and quota."""
    info = cpuinfo.read_cpuinfo(machine)
    topology = cpu_topology.read_topology(machine, notes)
    architecture = _find_architecture(machine, info)
    cpu = Cpu(
        architecture=architecture,
        cpus_online=len(topology.online) if topology.online else None,
        cores=topology.cores,
        packages=topology.packages,
        numa_nodes=topology.nodes_with_cpus,
        caches=topology.caches,
        core_kinds=topology.core_kinds,
        max_hz=topology.max_hz,
    )
    if info is not None:
        from_cpuinfo = cpuinfo.build_cpu(info, architecture)
        # From cpuinfo alone: /sys has no feature words.
        features = isa.list_features(info, architecture)
        kinds = count_core_kinds(info) if isa.is_arm(architecture) else None
        if kinds is None and isa.is_arm(architecture):
            notes.add("cpu.core_kinds", "proc/cpuinfo", "no CPU implementer and part in it")
        cpu = fill_unknown(
            replace(
                fill_unknown(cpu, from_cpuinfo),
                isa_features=features,
                microarchitecture=microarchitecture.find_cpuinfo_label(info.first, architecture),
            ),
            Cpu(core_kinds=kinds),
        )
    elif topology.online is None and machine.get_system() == "Linux":
        notes.add("cpu", "procfs", "neither proc/cpuinfo nor sys/devices/system/cpu can be read")
    if cpu.isa_features and "amx_tile" in cpu.isa_features and machine.is_amx_permitted() is False:
        notes.add("cpu.isa_features", "arch_prctl", "the processor has AMX, the kernel does not permit its use here")
        cpu = replace(cpu, isa_features=tuple(word for word in cpu.isa_features if not word.startswith("amx")))
    if cpu.cpus_online is None and machine.live:
        cpu = replace(cpu, cpus_online=machine.count_resources()[0])
    return _add_budget(machine, cpu, topology.online, limits, notes)


def _find_architecture(machine: Machine, info: cpuinfo.CpuInfo | None) -> str | None:
    """As ``platform.machine()`` says it: the machine's word, what cpuinfo shows, or the name in the kernel's version."""
    name = machine.get_architecture() or (cpuinfo.guess_architecture(info) if info else None)
    if name is None:
        kernel = f"{machine.read('proc/sys/kernel/osrelease') or ''} {machine.read('proc/version') or ''}"
        named = re.search(r"\b(x86_64|aarch64|ppc64le|ppc64|s390x|riscv64|loongarch64|ia64)\b", kernel)
        name = named.group(1) if named else None
    return {"amd64": "x86_64", "AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(name or "", name)


def _add_budget(machine: Machine, cpu: Cpu, online: frozenset[int] | None, limits: Limits, notes: Notes) -> Cpu:
    """``cpus_allowed`` = online ∩ affinity ∩ cpuset; ``budget`` = min(allowed, ceil(quota))."""
    affinity = machine.get_affinity()
    known = [cpus for cpus in (affinity, limits.cpus) if cpus is not None]
    allowed: int | None = None
    if known:
        # A cpuset may name CPUs that are switched off.
        together = frozenset.intersection(*known, *([online] if online else []))
        allowed = len(together) or None
    elif limits.root_cpuset:
        allowed = cpu.cpus_online
    if allowed is None and cpu.cpus_online is not None:
        notes.add("cpu.cpus_allowed", "procfs", "no affinity and no cpuset can be read: budget counts all online CPUs")
    budget = allowed if allowed is not None else cpu.cpus_online
    if limits.quota_cpus is not None:
        # Half a CPU still runs one thread; 3.5 keep four busy most of the time.
        ceiling = max(1, math.ceil(limits.quota_cpus))
        budget = ceiling if budget is None else min(budget, ceiling)
    return replace(cpu, cpus_allowed=allowed, quota=limits.quota_cpus, budget=budget)
