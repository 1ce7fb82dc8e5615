"""The microarchitecture's name: archspec's label, chosen by archspec's own rules from what was read."""

from __future__ import annotations

import re
from collections.abc import Iterable


def find_label(
    *,
    architecture: str | None,
    vendor: str = "generic",
    features: Iterable[str] = (),
    cpu_part: str = "",
    generation: int = 0,
    name: str = "",
) -> str | None:
    """The most specific target that the processor satisfies, ``None`` for a family that archspec does not know.

    The same choice as ``archspec.cpu.host()``, which can only be asked about the running machine: compatible targets,
    those of the same Arm part if any, descendants of the best generic one, the deepest of them.
    """
    from archspec.cpu.microarchitecture import TARGETS

    if architecture is None or architecture not in TARGETS:
        return None
    have = frozenset(features)
    if "ssse3" in have:  # Linux never prints sse3, which it implies (archspec does the same)
        have |= {"sse3"}
    root = TARGETS[architecture]
    fits = [
        target
        for target in TARGETS.values()
        if (target == root or root in target.ancestors)
        and _is_compatible(target, architecture, vendor, have, generation, name)
    ]
    if not fits:
        return architecture
    # The deepest generic level (x86_64_v3, …) rules out named targets that lack a part of it.
    best_generic = max((t for t in fits if t.vendor == "generic"), key=_get_depth, default=root)
    if cpu_part and any(t.cpu_part == cpu_part for t in fits):
        fits = [t for t in fits if t.cpu_part == cpu_part]
    # archspec orders targets by ancestry: these have the generic one among theirs.
    specific = [t for t in fits if t > best_generic]
    return (max(specific, key=_get_depth) if specific else best_generic).name


def _get_depth(target) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)


def _is_compatible(target, architecture: str, vendor: str, have: frozenset[str], generation: int, name: str) -> bool:
    if architecture.startswith("ppc64"):
        return target.generation <= generation
    if architecture == "riscv64":
        return target.vendor == "generic" or target.name == name
    if architecture == "aarch64" and name:  # Apple: sysctl names the chip but not all of its features
        from archspec.cpu.microarchitecture import TARGETS

        chip = TARGETS.get(name)
        return chip is not None and (target == chip or target in chip.ancestors)
    if architecture == "aarch64" and target.vendor == "generic" and target.name != "aarch64":
        return False  # an "armv8.4a" cannot be told from its features
    return target.vendor in (vendor, "generic") and target.features <= have


AMD_GENERATIONS = {"25": "zen4", "26": "zen5"}
"""AMD processors with AVX-512 by the family that they state (Linux, arch/x86/kernel/cpu/amd.c): Zen 3 is of family 25 too, and has none."""
INTEL_WITH_TILES = "sapphirerapids"
"""the first with AMX, and the last one that archspec knows"""


def find_cpuinfo_label(first: dict[str, str], architecture: str | None) -> str | None:
    """The label for one processor block of /proc/cpuinfo (archspec looks at the first)."""
    if architecture in ("x86_64", "i686", "i386"):
        vendor, features = first.get("vendor_id", "generic"), first.get("flags", "").split()
        label = find_label(
            architecture="x86_64" if architecture == "x86_64" else "x86", vendor=vendor, features=features
        )
        # hypervisors hide features that archspec asks a generation for (of Intel's "waitpkg"), and run the same kernels on it
        if vendor == "GenuineIntel" and "amx_tile" in features:
            return INTEL_WITH_TILES
        hidden = label is not None and label.startswith("x86_64") and vendor == "AuthenticAMD" and "avx512f" in features
        return AMD_GENERATIONS.get(first.get("cpu family", ""), label) if hidden else label
    if architecture == "aarch64":
        return find_label(
            architecture="aarch64",
            vendor=find_arm_vendor(first.get("CPU implementer", "")),
            features=first.get("Features", "").split(),
            cpu_part=first.get("CPU part", ""),
        )
    power = re.search(r"POWER(\d{1,2})", first.get("cpu", ""))
    if architecture in ("ppc64", "ppc64le") or power:
        # The chip has one name; archspec's second one, with "le", needs the byte order to be known.
        return find_label(architecture=architecture or "ppc64", generation=int(power.group(1)) if power else 0)
    if architecture == "riscv64":
        return find_label(architecture="riscv64", name=_find_riscv_name(first))
    return None


def _find_riscv_name(first: dict[str, str]) -> str:
    if first.get("uarch") == "sifive,u74-mc":
        return "u74mc"
    if first.get("uarch") == "spacemit,x60" or first.get("model name") == "Spacemit(R) X60":
        return "x60"
    return first.get("uarch", "riscv64")


def find_arm_vendor(implementer: str) -> str:
    """The maker's name for an implementer code (``0x41``)."""
    from archspec.cpu.schema import TARGETS_JSON

    return TARGETS_JSON["conversions"]["arm_vendors"].get(implementer, implementer or "generic")


def find_apple_label(brand: str) -> str:
    """``m2`` of ``Apple M2 Pro``; a chip newer than archspec gets the newest name below it, as archspec does."""
    from archspec.cpu.microarchitecture import TARGETS

    match = re.search(r"apple\s+m(\d{1,2})", brand.lower())
    if match is None:
        # Virtual machines on Apple silicon name no chip: the least of them is sure.
        return "m1" if brand.lower() == "apple processor" else "aarch64"
    for number in range(int(match.group(1)), 0, -1):
        if f"m{number}" in TARGETS:
            return f"m{number}"
    return "aarch64"


def translate_darwin_flags(flags: Iterable[str]) -> set[str]:
    """macOS's feature words with their Linux counterparts added (archspec's table)."""
    from archspec.cpu.schema import TARGETS_JSON

    have = set(flags)
    for darwin, linux in TARGETS_JSON["conversions"]["darwin_flags"].items():
        if all(word in have for word in darwin.split()):
            have.update(linux.split())
    return have
