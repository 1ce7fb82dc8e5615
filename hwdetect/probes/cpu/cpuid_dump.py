"""Raw CPUID leaves: hwloc's dumps of every logical CPU (``cpuid/pu0…``) and one CPU's ``cpuid.csv``.

Topology from the APIC numbers as the makers' manuals have it: Intel SDM volume 3A chapter 9 (leaves 0x1F, 0x0B, and
1 with 4 on older chips), AMD APM volume 3 appendix E (0x80000008, 0x8000001E).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from hwdetect.machine.protocol import Machine
from hwdetect.probes.cpu import isa, microarchitecture
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line
from hwdetect.types import Cpu

Registers = tuple[int, int, int, int]  # eax, ebx, ecx, edx
Leaves = Mapping[tuple[int, int], Registers]

# (leaf, subleaf, register, bit) of the words in ``isa.X86_WORDS`` (Intel SDM volume 2A, CPUID).
BITS = {
    "sse4_2": (1, 0, 2, 20),
    "avx": (1, 0, 2, 28),
    "f16c": (1, 0, 2, 29),
    "fma": (1, 0, 2, 12),
    "avx2": (7, 0, 1, 5),
    "avx512f": (7, 0, 1, 16),
    "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31),
    "avx512_vnni": (7, 0, 2, 11),
    "avx512_bf16": (7, 1, 0, 5),
    "avx512_fp16": (7, 0, 3, 23),
    "avx_vnni": (7, 1, 0, 4),
    "amx_bf16": (7, 0, 3, 22),
    "amx_tile": (7, 0, 3, 24),
    "amx_int8": (7, 0, 3, 25),
    "amx_fp16": (7, 1, 0, 21),
}
SMT = 1  # level type of leaves 0x0B and 0x1F
HYPERTHREADING = 28  # bit of leaf 1 EDX: the package has more than one logical CPU
ZERO: Registers = (0, 0, 0, 0)


def read_cpuid(machine: Machine, notes: Notes) -> Cpu:
    """The processor as the dump shows it; empty where there is none."""
    dumps = _read_dumps(machine, notes)
    if dumps:
        return _build_cpu(dumps, counted=True)
    single = parse_csv(machine.read("cpuid.csv") or "")
    return _build_cpu([single], counted=False) if single else Cpu()


def _read_dumps(machine: Machine, notes: Notes) -> list[Leaves]:
    names = [name for name in machine.list_folder("cpuid") if re.fullmatch(r"pu\d{1,6}", name)]
    dumps: list[Leaves] = [
        parse_dump(machine.read(f"cpuid/{name}") or "") for name in sorted(names, key=lambda n: int(n[2:]))
    ]
    good = [dump for dump in dumps if (1, 0) in dump]
    if len(good) < len(names):
        notes.add("cpu", "cpuid", f"{len(names) - len(good)} of {len(names)} dumps have no leaf 1")
    return good


def parse_dump(text: str) -> dict[tuple[int, int], Registers]:
    """Leaves of ``mask eax ebx ecx edx => eax ebx ecx edx`` in hexadecimal; bit 2 of the mask: ECX is a subleaf."""
    leaves: dict[tuple[int, int], Registers] = {}
    for line in text.splitlines():
        words = re.fullmatch(
            r"\s*([0-9a-f]{1,8}(?: [0-9a-f]{1,8}){4}) => ([0-9a-f]{1,8}(?: [0-9a-f]{1,8}){3})\s*", line
        )
        if words:
            mask, eax, _, ecx, _ = (int(word, 16) for word in words.group(1).split())
            out = [int(word, 16) for word in words.group(2).split()]
            leaves[eax, ecx if mask & 4 else 0] = (out[0], out[1], out[2], out[3])
    return leaves


def parse_csv(text: str) -> dict[tuple[int, int], Registers]:
    """Leaves of ``leaf, subleaf, eax, ebx, ecx, edx`` in decimal."""
    leaves: dict[tuple[int, int], Registers] = {}
    for line in text.splitlines():
        if re.fullmatch(r"[ \t]*[0-9]{1,10}[ \t]*(,[ \t]*[0-9]{1,10}[ \t]*){5}", line):
            leaf, subleaf, *registers = (int(cell) & 0xFFFFFFFF for cell in line.split(","))
            leaves[leaf, subleaf] = (registers[0], registers[1], registers[2], registers[3])
    return leaves


def decode_vendor(leaves: Leaves) -> str:
    _, ebx, ecx, edx = leaves.get((0, 0), ZERO)
    # The name is spread over EBX, EDX and ECX, in that order.
    return struct.pack("<III", ebx, edx, ecx).decode("ascii", "replace").strip("\0")


def decode_brand(leaves: Leaves) -> str | None:
    """The brand string of 0x80000002 to 4, ``None`` where it is blank."""
    registers = [r for leaf in (0x80000002, 0x80000003, 0x80000004) for r in leaves.get((leaf, 0), ZERO)]
    return clean_line(struct.pack("<12I", *registers).decode("latin-1").replace("\0", ""))


def _build_cpu(dumps: list[Leaves], *, counted: bool) -> Cpu:
    first = dumps[0]
    words = [_list_words(dump) for dump in dumps]
    threads = [_locate_thread(dump) for dump in dumps]
    architecture = "x86_64" if first.get((0x80000001, 0), ZERO)[3] >> 29 & 1 else "i686"  # EDX bit 29: long mode
    return Cpu(
        model_name=decode_brand(first),
        vendor=decode_vendor(first),
        architecture=architecture,
        microarchitecture=microarchitecture.find_label(
            architecture="x86_64", vendor=decode_vendor(first), features=_list_archspec_words(first)
        ),
        packages=len({package for package, _ in threads}) if counted else None,
        cores=len(set(threads)) if counted else None,
        cpus_online=len(dumps) if counted else None,
        isa_features=isa.select_known_words(set.intersection(*words), architecture),
    )


def _list_words(leaves: Leaves) -> set[str]:
    return {word for word, (leaf, sub, reg, bit) in BITS.items() if leaves.get((leaf, sub), ZERO)[reg] >> bit & 1}


def _list_archspec_words(leaves: Leaves) -> set[str]:
    """Flags by archspec's own table of bits, for its label."""
    from archspec.cpu.schema import CPUID_JSON

    order = {"eax": 0, "ebx": 1, "ecx": 2, "edx": 3}
    return {
        bit["name"]
        for call in (*CPUID_JSON["flags"], *CPUID_JSON["extension-flags"])
        for bit in call["bits"]
        if leaves.get((call["input"]["eax"], call["input"]["ecx"]), ZERO)[order[bit["register"]]] >> bit["bit"] & 1
    }


def _locate_thread(leaves: Leaves) -> tuple[int, int]:
    """(package, core) numbers that are distinct across the machine."""
    for method in (_locate_by_levels, _locate_by_amd_leaves, _locate_by_legacy_leaves):
        place = method(leaves)
        if place is not None:
            return place
    apic = leaves.get((1, 0), ZERO)[1] >> 24
    return apic, apic


def _locate_by_levels(leaves: Leaves) -> tuple[int, int] | None:
    """Leaf 0x1F, else 0x0B: each level's shift towards the next; the last one's leads to the package."""
    for leaf in (0x1F, 0x0B):
        levels = []
        for sub in range(16):
            eax, ebx, ecx, edx = leaves.get((leaf, sub), ZERO)
            # Level type 0 or no logical CPUs at the level ends the list.
            if not ecx >> 8 & 0xFF or not ebx & 0xFFFF:
                break
            # Level type, bits to shift towards the next level, x2APIC id.
            levels.append((ecx >> 8 & 0xFF, eax & 0x1F, edx))
        if levels:
            apic = levels[0][2]
            smt = next((shift for kind, shift, _ in levels if kind == SMT), 0)
            # What is left after the bits of a level is the number of the thing around it.
            return apic >> levels[-1][1], apic >> smt
    return None


def _locate_by_amd_leaves(leaves: Leaves) -> tuple[int, int] | None:
    if decode_vendor(leaves) not in ("AuthenticAMD", "HygonGenuine") or not {(0x80000008, 0), (1, 0)} <= leaves.keys():
        return None
    sizes = leaves[0x80000008, 0][2]
    # ApicIdSize where it is given; else the bits that number cores - 1 in the package.
    shift = sizes >> 12 & 0xF or (sizes & 0xFF).bit_length()
    apic, threads = leaves[1, 0][1] >> 24, 1
    if leaves.get((0x80000001, 0), ZERO)[2] >> 22 & 1 and (0x8000001E, 0) in leaves:  # TopologyExtensions
        apic, extended = leaves[0x8000001E, 0][0], leaves[0x8000001E, 0][1]
        threads = (extended >> 8 & 0xFF) + 1  # ThreadsPerComputeUnit, less one
    family = leaves[1, 0][0]
    if (family >> 8 & 0xF) + (family >> 20 & 0xFF) == 0x15:  # base and extended family
        threads = 1  # the two integer units of a Bulldozer module are cores to hwloc and to AMD's own count
    return apic >> shift, apic >> (threads - 1).bit_length()


def _locate_by_legacy_leaves(leaves: Leaves) -> tuple[int, int] | None:
    _, ebx, _, edx = leaves.get((1, 0), ZERO)  # a torn dump may lack it
    if not edx >> HYPERTHREADING & 1:
        return None
    logical = max(1, ebx >> 16 & 0xFF)  # logical CPUs in the package
    cores = (leaves.get((4, 0), ZERO)[0] >> 26) + 1  # EAX 31-26: cores in the package, less one
    threads = max(1, logical // cores)
    apic = ebx >> 24
    return apic >> (logical - 1).bit_length(), apic >> (threads - 1).bit_length()
