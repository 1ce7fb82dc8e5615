"""Instruction-set words that matter for training and inference, the same set for every source.

A word counts when every online CPU has it. x86 words count on x86 only and Arm words on Arm only: ``sme`` among x86
flags is memory encryption, and Apple's ``amx`` is not Intel's AMX.
"""

from __future__ import annotations

from collections.abc import Iterable

from hwdetect.probes.cpu.cpuinfo import CpuInfo

X86_WORDS = [
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "avx10_1",
    "avx10_2",
]
ARM_WORDS = [
    "neon",
    "asimd",
    "asimdhp",
    "fphp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
    "svebf16",
    "svei8mm",
    "sme",
    "sme2",
]

X86 = frozenset({"x86_64", "i386", "i486", "i586", "i686"})
# What other systems call them.
X86_ALIASES = {
    "avx1.0": "avx",
    "sse4.2": "sse4_2",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512_tile": "amx_tile",
}


def is_arm(architecture: str | None) -> bool:
    return architecture is not None and (architecture.startswith("arm") or architecture == "aarch64")


def select_known_words(words: Iterable[str], architecture: str | None) -> tuple[str, ...]:
    """Those of the words that mean something on that architecture, in the order of the tables."""
    given = {X86_ALIASES.get(w, w) for w in (word.lower() for word in words)}
    if architecture in X86:
        return tuple(word for word in X86_WORDS if word in given)
    if is_arm(architecture):
        return tuple(word for word in ARM_WORDS if word in given)
    return ()


def list_features(info: CpuInfo, architecture: str | None) -> tuple[str, ...] | None:
    """What every listed CPU has, ``None`` where cpuinfo has no feature line at all."""
    if not (architecture in X86 or is_arm(architecture)):
        return ()
    key = "flags" if architecture in X86 else "Features"
    listed = [set(block[key].split()) for block in info.blocks if key in block]
    if not listed and key in info.common:
        listed = [set(info.common[key].split())]
    # Cores of one chip can differ: a process may be moved to any of them.
    return select_known_words(set.intersection(*listed), architecture) if listed else None
