"""``/proc/cpuinfo`` of any architecture, as blocks of key and value. The kernel lists only CPUs that are online."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hwdetect.machine.protocol import Machine
from hwdetect.probes.parsing import clean_line
from hwdetect.types import Cpu

MODEL_KEYS = ("model name", "Model Name", "cpu model", "cpu", "uarch", "Processor", "family")


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """``blocks``: one mapping per numbered processor; ``common``: what stands outside of them (old Arm, s390, POWER)."""

    blocks: tuple[dict[str, str], ...]
    common: dict[str, str]

    @property
    def first(self) -> dict[str, str]:
        """The first processor's fields, completed by the common ones."""
        return {**self.common, **(self.blocks[0] if self.blocks else {})}


def read_cpuinfo(machine: Machine) -> CpuInfo | None:
    """The parsed file, ``None`` if there is none."""
    text = machine.read("proc/cpuinfo")
    return None if not text or not text.strip() else parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> CpuInfo:
    blocks: list[dict[str, str]] = []
    common: dict[str, str] = {}
    current: dict[str, str] | None = None
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if not key:
            current = None
        elif separator and key == "processor" and value.isdecimal():
            current = {"processor": value}
            blocks.append(current)
        elif numbered := re.fullmatch(r"processor (\d+)", key):  # s390: one line per processor
            blocks.append({"processor": numbered.group(1)})
        elif separator:
            (common if current is None else current).setdefault(key, value)
    return CpuInfo(tuple(blocks), common)


def build_cpu(info: CpuInfo, architecture: str | None) -> Cpu:
    """What cpuinfo alone says: name, vendor and how many processors it lists."""
    arch = architecture or guess_architecture(info)
    first = info.first
    listed = len(info.blocks)
    online = listed if listed and not _is_trimmed(info) else _read_sparc_count(info)
    packages = _list_packages(info)
    return Cpu(
        model_name=find_model_name(first),
        vendor=first.get("vendor_id") or first.get("vendor") or None,
        architecture=arch,
        cpus_listed=listed,
        cpus_online=online,
        packages=len(packages) or None,
        cores=_count_cores(info, packages),
        max_hz=None,
    )


def _read_sparc_count(info: CpuInfo) -> int | None:
    """SPARC counts its processors and lists none."""
    active = info.common.get("ncpus active", "")
    return int(active) if active.isdecimal() and int(active) else None


def _list_packages(info: CpuInfo) -> frozenset[str]:
    """The packages that every listed processor names itself of: x86 says "physical id", LoongArch "package"."""
    named = [block.get("physical id") or block.get("package") for block in info.blocks]
    whole = [block["processor"] for block in info.blocks] == [str(i) for i in range(len(info.blocks))]
    return (
        frozenset(name for name in named if name)
        if whole and not _is_trimmed(info) and None not in named
        else frozenset()
    )


def _count_cores(info: CpuInfo, packages: frozenset[str]) -> int | None:
    """LoongArch numbers the cores of a package; x86 counts them, for its "core id" repeats between the dies of some."""
    if not packages:
        return None
    numbered = {(block["package"], block["core"]) for block in info.blocks if "core" in block and "package" in block}
    counted = {block.get("cpu cores", "") for block in info.blocks}
    if len(counted) == 1 and (count := counted.pop()).isdecimal() and int(count):
        return len(packages) * int(count)
    return len(numbered) or None


def find_model_name(first: dict[str, str]) -> str | None:
    named = next((first[key] for key in MODEL_KEYS if first.get(key)), None)
    return clean_line(named)


def _is_trimmed(info: CpuInfo) -> bool:
    """Whether the file names more CPUs than it lists (a copy of one block, not a machine of one CPU)."""
    siblings = info.first.get("siblings", "")
    return siblings.isdecimal() and int(siblings) > len(info.blocks)


def guess_architecture(info: CpuInfo) -> str | None:
    """The name ``platform.machine()`` would give, from what only that architecture's cpuinfo says."""
    first = info.first
    # Only x86 calls them "flags"; a cut copy may have lost them and kept the vendor.
    if "flags" in first or first.get("vendor_id") in ("GenuineIntel", "AuthenticAMD"):
        # "lm" is long mode, 64 bits.
        return "x86_64" if "lm" in first.get("flags", "lm").split() else "i686"
    if first.get("vendor_id", "").startswith("IBM/S390"):
        return "s390x"
    if first.get("arch") == "IA-64":
        return "ia64"
    # With a capital P only old 32-bit Arm kernels name their processor.
    if "CPU implementer" in first or "Processor" in first:
        return _guess_arm(info)
    if first.get("isa", "").startswith("rv"):
        return "riscv64" if first["isa"].startswith("rv64") else "riscv32"
    if "loongarch64" in first.get("ISA", "") or "Loongson-64bit" in first.get("CPU Family", ""):
        return "loongarch64"
    if first.get("type", "").startswith("sun4"):
        return "sparc64" if first["type"] in ("sun4u", "sun4v") else "sparc"
    # POWER counts its timebase; embedded PowerPC prints a processor version register instead.
    if ("cpu" in first and "timebase" in first | info.common) or "pvr" in first.get("revision", ""):
        return _guess_power(first)
    return None


def _guess_arm(info: CpuInfo) -> str:
    first = info.first
    features = first.get("Features", "").split()
    if "asimd" in features or (first.get("Processor", "").startswith("AArch64") and "half" not in features):
        return "aarch64"
    if "half" in features and "aarch64" in first.get("Processor", "").lower():
        return "armv8l"  # the 32-bit view of a 64-bit chip
    # "5TEJ": letters for Thumb, DSP and Java. One that prints none is taken for Armv7.
    generation = first.get("CPU architecture", "7").rstrip("TEJ")
    named = re.search(r"\(v(\d)l\)", first.get("Processor", "") + first.get("model name", ""))
    generation = named.group(1) if named else generation
    return f"armv{generation}l" if generation.isdecimal() else "arm"


def _guess_power(first: dict[str, str]) -> str | None:
    """POWER4 upwards, Cell and 970 are 64-bit. From POWER8 on either byte order runs, and cpuinfo does not say which."""
    name = first.get("cpu", "")
    generation = re.search(r"POWER(\d{1,2})", name)
    if generation is None:
        return "ppc64" if "Cell" in name or "970" in name else "ppc"
    if int(generation.group(1)) < 8:
        return "ppc64"
    return "ppc64le" if "POWER8NVL" in name else None  # NVLink to the CPU exists under little-endian Linux only
