"""Macs, from ``sysctl -a`` (and ``vm_stat``): processor, memory and, on Apple silicon, the GPU that shares it."""

from __future__ import annotations

import re

from hwdetect.machine import Machine
from hwdetect.probes import isa, microarchitecture
from hwdetect.probes.found import NOTHING, Found
from hwdetect.probes.reading import Notes, json_of, mapping, pairs, squeeze, text_of, whole
from hwdetect.types import Accelerator, Board, Cache, CoreKind, Cpu, Memory

SECONDS = 1.5
# hw.optional keys of Apple silicon that mean a word of ``isa.ARM_WORDS``.
WORDS = {
    "hw.optional.arm.FEAT_BF16": ("bf16",),
    "hw.optional.arm.FEAT_I8MM": ("i8mm",),
    "hw.optional.arm.FEAT_FP16": ("fphp", "asimdhp"),
    "hw.optional.neon_fp16": ("fphp", "asimdhp"),
    "hw.optional.arm.FEAT_DotProd": ("asimddp",),
    "hw.optional.arm.FEAT_SME": ("sme",),
    "hw.optional.arm.FEAT_SME2": ("sme2",),
    "hw.optional.AdvSIMD": ("asimd",),
    "hw.optional.neon": ("asimd",),
}


def read_apple(machine: Machine, notes: Notes) -> Found:
    if machine.system() != "Darwin":
        return NOTHING
    output = machine.run(("sysctl", "-a"), SECONDS)
    said = {**pairs(output.text, "="), **pairs(output.text, ":")}
    if not said:
        notes.add("cpu", "sysctl", output.problem or "no answer")
        return NOTHING
    # An x86 Python under Rosetta is told x86_64 by everything but these keys.
    brand = squeeze(said.get("machdep.cpu.brand_string"))
    silicon = said.get("hw.optional.arm64") == "1" or (brand or "").startswith("Apple")
    memory = whole(said.get("hw.memsize"))
    boards, accelerators = _gpu(machine, said, brand, memory) if silicon else ((), ())
    return Found(
        cpu=_cpu(said, brand, silicon),
        memory=Memory(total_bytes=memory, available_bytes=_available(machine), numa_nodes=1 if memory else None),
        boards=boards,
        accelerators=accelerators,
    )


def _first(said: dict[str, str], *keys: str) -> int | None:
    return next((n for key in keys if (n := whole(said.get(key))) is not None and n > 0), None)


def _cpu(said: dict[str, str], brand: str | None, silicon: bool) -> Cpu:
    online = _first(said, "hw.activecpu", "hw.logicalcpu", "hw.ncpu", "machdep.cpu.thread_count")
    architecture = "aarch64" if silicon else "x86_64"
    flags = " ".join(said.get(f"machdep.cpu.{key}", "") for key in ("features", "leaf7_features", "extfeatures"))
    x86 = flags.lower().split()
    words = [w for key, names in WORDS.items() if said.get(key) == "1" for w in names] if silicon else x86
    if silicon and said.get("hw.optional.arm64") == "1":
        words.append("asimd")  # part of the base of 64-bit Arm
    return Cpu(
        model_name=brand,
        architecture=architecture,
        vendor="Apple" if silicon else said.get("machdep.cpu.vendor"),
        microarchitecture=_label(said, brand, silicon, x86),
        packages=_first(said, "hw.packages"),
        cores=_first(said, "hw.physicalcpu", "machdep.cpu.core_count"),
        cpus_online=online,
        cpus_allowed=online,  # macOS has no affinity that could take CPUs away
        budget=online,
        numa_nodes=1 if online else None,
        isa_features=isa.known_words(words, architecture),
        caches=_caches(said),
        core_kinds=_core_kinds(said),
        max_hz=_first(said, "hw.cpufrequency_max"),
    )


def _label(said: dict[str, str], brand: str | None, silicon: bool, flags: list[str]) -> str | None:
    if silicon:
        return microarchitecture.apple_label(brand or "")
    return microarchitecture.label(
        architecture="x86_64",
        vendor=said.get("machdep.cpu.vendor", ""),
        features=microarchitecture.from_darwin(flags),
    )


def _caches(said: dict[str, str]) -> tuple[Cache, ...] | None:
    kinds = (
        ("l1dcachesize", 1, "data"),
        ("l1icachesize", 1, "instruction"),
        ("l2cachesize", 2, "unified"),
        ("l3cachesize", 3, "unified"),
    )
    found = [
        Cache(level=level, kind=kind, size_bytes=size, count=None)
        for key, level, kind in kinds
        if (size := _first(said, f"hw.perflevel0.{key}", f"hw.{key}"))
    ]
    return tuple(found) or None


def _core_kinds(said: dict[str, str]) -> tuple[CoreKind, ...] | None:
    """Performance and efficiency cores: ``perflevel0`` is the faster."""
    found = []
    for level in range(min(_first(said, "hw.nperflevels") or 0, 4)):
        cpus = _first(said, f"hw.perflevel{level}.logicalcpu")
        name = said.get(f"hw.perflevel{level}.name") or ("performance" if level == 0 else "efficiency")
        if cpus:
            found.append(CoreKind(name=name.lower(), cpus=cpus))
    return tuple(found) if len(found) > 1 else None


def _available(machine: Machine) -> int | None:
    """Free, inactive and speculative pages of ``vm_stat``."""
    text = machine.run(("vm_stat",), SECONDS).text or ""
    page = re.search(r"page size of (\d{1,6}) bytes", text)
    counts = re.findall(r"^Pages (?:free|inactive|speculative):\s+(\d{1,12})\.", text, re.MULTILINE)
    return int(page.group(1)) * sum(map(int, counts)) if page and counts else None


def _gpu(
    machine: Machine, said: dict[str, str], brand: str | None, memory: int | None
) -> tuple[tuple[Board, ...], tuple[Accelerator, ...]]:
    """The GPU of the chip. A GPU process may wire what ``iogpu.wired_limit_mb`` says; 0 is the system's own choice."""
    name = brand if brand and re.search(r"Apple M\d", brand) else None
    displays = mapping(json_of(machine.run(("system_profiler", "-json", "SPDisplaysDataType"), SECONDS).text))
    listed = displays.get("SPDisplaysDataType")
    first = mapping(listed[0]) if isinstance(listed, list) and listed else {}
    limit = _first(said, "iogpu.wired_limit_mb")
    board = Board(
        index=0,
        vendor="apple",
        name=name or text_of(first.get("sppci_model")),
        unified_memory=True,
        compute_units=whole(text_of(first.get("sppci_cores"))),
        state="ok",
    )
    accelerator = Accelerator(
        index=0,
        board=0,
        name=board.name,
        memory_bytes=min(limit << 20, memory) if limit and memory else None,
        compute_units=board.compute_units,
        compute_share=1.0,
    )
    return (board,), (accelerator,)
