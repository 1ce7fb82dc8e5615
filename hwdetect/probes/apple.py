"""Macs, from ``sysctl -a`` (and ``vm_stat``): processor, memory and, on Apple silicon, the GPU that shares it."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes.cpu import isa, microarchitecture
from hwdetect.probes.notes import Notes, note_cut
from hwdetect.probes.parsing import clean_line, get_mapping, get_text, parse_integer, parse_json, parse_pairs
from hwdetect.probes.partial import NOTHING, PartialHardware
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


def read_apple(machine: Machine, notes: Notes) -> PartialHardware:
    if machine.get_system() != "Darwin":
        return NOTHING
    output = machine.run(("sysctl", "-a"), SECONDS)
    note_cut(notes, "cpu", "sysctl", output.text)
    # macOS prints "key: value", recordings of older systems "key = value"; colons win where a value holds "=".
    values = {**parse_pairs(output.text, "="), **parse_pairs(output.text, ":")}
    if not values:
        notes.add("cpu", "sysctl", output.problem or "no answer")
        return NOTHING
    # An x86 Python under Rosetta is told x86_64 by everything but these keys.
    brand = clean_line(values.get("machdep.cpu.brand_string"))
    silicon = values.get("hw.optional.arm64") == "1" or (brand or "").startswith("Apple")
    memory = parse_integer(values.get("hw.memsize"))
    boards, accelerators = _read_gpu(machine, values, brand, memory) if silicon else ((), ())
    return PartialHardware(
        cpu=_build_cpu(values, brand, silicon),
        memory=Memory(total_bytes=memory, available_bytes=_read_available(machine), numa_nodes=1 if memory else None),
        boards=boards,
        accelerators=accelerators,
    )


def _get_first(values: dict[str, str], *keys: str) -> int | None:
    return next((n for key in keys if (n := parse_integer(values.get(key))) is not None and n > 0), None)


def _build_cpu(values: dict[str, str], brand: str | None, silicon: bool) -> Cpu:
    online = _get_first(values, "hw.activecpu", "hw.logicalcpu", "hw.ncpu", "machdep.cpu.thread_count")
    architecture = "aarch64" if silicon else "x86_64"
    flags = " ".join(values.get(f"machdep.cpu.{key}", "") for key in ("features", "leaf7_features", "extfeatures"))
    # macOS writes AVX1.0, Linux avx: ``isa`` knows both in lower case.
    x86 = flags.lower().split()
    words = [w for key, names in WORDS.items() if values.get(key) == "1" for w in names] if silicon else x86
    if silicon and values.get("hw.optional.arm64") == "1":
        words.append("asimd")  # part of the base of 64-bit Arm
    return Cpu(
        model_name=brand,
        architecture=architecture,
        vendor="Apple" if silicon else values.get("machdep.cpu.vendor"),
        microarchitecture=_find_label(values, brand, silicon, x86),
        packages=_get_first(values, "hw.packages"),
        cores=_get_first(values, "hw.physicalcpu", "machdep.cpu.core_count") or _add_up_cores(values),
        cpus_online=online,
        cpus_allowed=online,  # macOS has no affinity that could take CPUs away
        budget=online,
        numa_nodes=1 if online else None,
        isa_features=isa.select_known_words(words, architecture),
        caches=_list_caches(values),
        core_kinds=_list_core_kinds(values),
        max_hz=_get_first(values, "hw.cpufrequency_max"),
    )


def _find_label(values: dict[str, str], brand: str | None, silicon: bool, flags: list[str]) -> str | None:
    if silicon:
        return microarchitecture.find_apple_label(brand or "")
    return microarchitecture.find_label(
        architecture="x86_64",
        vendor=values.get("machdep.cpu.vendor", ""),
        features=microarchitecture.translate_darwin_flags(flags),
    )


def _list_caches(values: dict[str, str]) -> tuple[Cache, ...] | None:
    kinds = (
        ("l1dcachesize", 1, "data"),
        ("l1icachesize", 1, "instruction"),
        ("l2cachesize", 2, "unified"),
        ("l3cachesize", 3, "unified"),
    )
    caches = [
        Cache(level=level, kind=kind, size_bytes=size, count=None)
        for key, level, kind in kinds
        if (size := _get_first(values, f"hw.perflevel0.{key}", f"hw.{key}"))
    ]
    return tuple(caches) or None


def _add_up_cores(values: dict[str, str]) -> int | None:
    return sum(_get_first(values, f"hw.perflevel{level}.physicalcpu") or 0 for level in range(4)) or None


def _list_core_kinds(values: dict[str, str]) -> tuple[CoreKind, ...] | None:
    """Performance and efficiency cores: ``perflevel0`` is the faster."""
    kinds = []
    for level in range(4):
        cpus = _get_first(values, f"hw.perflevel{level}.logicalcpu")
        name = values.get(f"hw.perflevel{level}.name") or ("performance" if level == 0 else "efficiency")
        if cpus:
            kinds.append(CoreKind(name=name.lower(), cpus=cpus))
    return tuple(kinds) if len(kinds) > 1 else None


def _read_available(machine: Machine) -> int | None:
    """Free, inactive and speculative pages of ``vm_stat``."""
    text = machine.run(("vm_stat",), SECONDS).text or ""
    page = re.search(r"page size of (\d{1,6}) bytes", text)
    counts = re.findall(r"^Pages (?:free|inactive|speculative):\s+(\d{1,12})\.", text, re.MULTILINE)
    return int(page.group(1)) * sum(map(int, counts)) if page and counts else None


def _read_gpu(
    machine: Machine, values: dict[str, str], brand: str | None, memory: int | None
) -> tuple[tuple[Board, ...], tuple[Accelerator, ...]]:
    """The GPU of the chip. A GPU process may wire what ``iogpu.wired_limit_mb`` says; 0 is the system's own choice."""
    name = brand if brand and re.search(r"Apple M\d", brand) else None
    displays = get_mapping(parse_json(machine.run(("system_profiler", "-json", "SPDisplaysDataType"), SECONDS).text))
    listed = displays.get("SPDisplaysDataType")
    first = get_mapping(listed[0]) if isinstance(listed, list) and listed else {}
    # 0 leaves the choice to the system, and no key tells what it chose.
    limit = _get_first(values, "iogpu.wired_limit_mb")
    board = Board(
        index=0,
        vendor="apple",
        name=name or get_text(first.get("sppci_model")),
        unified_memory=True,
        compute_units=parse_integer(get_text(first.get("sppci_cores"))),
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
