"""A machine from a few words, for planning without it: ``8xh100-sxm-80gb``, ``cpu:16``, ``p5.48xlarge``.

    spec      = [NODES "x"] [COUNT "x"] DEVICE options      devices of the catalogue, by id, alias or name
              | [NODES "x"] [COUNT "x"] DEVICE (":" | "-mig-") PROFILE options
              | SLICE options                              a slice of TPUs, by Google's name
              | [NODES "x"] [COUNT "x"] "cpu" options       a machine without accelerators, of so many processes
              | [NODES "x"] [CLOUD ":"] INSTANCE            a cloud instance type (hwdetect/instances.toml)
    options   = [":" CPUS] ["+" FEATURE]… ["," MEMORY "gb"]

    h200                         one H200
    8xh100-sxm-80gb              eight in one node
    2x8xh100-sxm-80gb            two nodes of eight
    4xrtx-3090+nvlink            with the optional bridges, joining 0-1 and 2-3
    4xrtx-4090:64,256gb          64 CPUs and 256 GiB of host memory, instead of what is assumed
    cpu:16                       16 x86-64 cores with AVX2 and AVX-512, 64 GiB
    cpu:16+bf16                  the same with AVX512_BF16 and VNNI; +vnni: VNNI alone; +amx: AMX tiles too
    cpu:16+avx2                  without AVX-512
    cpu:64+arm, cpu:64+sve       Arm: NEON alone; SVE with BF16 and I8MM
    grace, grace:144,960gb       NVIDIA Grace: 72 cores with SVE and 480 GiB; the superchip of two
    cpu:16,64gb                  with so much memory
    4xcpu:2                      four processes of two cores each on one CPU: what several GPUs do, tried without them
    h100-mig-1g.10gb, a100:3g.40gb, 7xa100-mig-1g.10gb     MIG instances, on as few boards as hold them
    tpu-v5e-8, v6e-16, v5p-8     slices: so many chips; of v2 to v4 and v5p so many TensorCores, of which a chip has two
    p5.48xlarge, aws:p5.48xlarge, 4xp5.48xlarge
    NVIDIA A100-SXM4-80GB, 2x Tesla T4, 4090               what nvidia-smi prints, or people say

What the text does not say is assumed, and ``Hardware.notes`` says so: 16 CPUs per device and host memory of twice the
devices' memory; for a CPU spec 8 cores and 4 GiB per core; between nodes the usual fabric of that class of device.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from hwdetect import catalog
from hwdetect.catalog.matching import fits_memory
from hwdetect.cloud import find_instance, list_instance_names, list_instances
from hwdetect.described import (
    ARM,
    ARM_SVE,
    GIB,
    GRACE,
    X86,
    describe_cpu_machine,
    describe_device_machine,
    describe_instance,
    describe_mig_machine,
)
from hwdetect.mig import Spelled, find_profile, list_boards, list_profiles, split_spelling
from hwdetect.types import Device, Hardware, Note

LONGEST = 200  # characters: a spec is a few words
MOST_DEVICES_PER_NODE = 128  # an NVL72 rack is the largest that exists as one machine
MOST_NODES = 100_000
MOST_CPUS = 65_536

# What "+word" makes of the instruction sets.
CPU_FEATURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "avx2": ("x86_64", ("avx2",)),
    "avx512": ("x86_64", X86),
    "vnni": ("x86_64", (*X86, "avx512_vnni")),
    "bf16": ("x86_64", (*X86, "avx512_bf16", "avx512_vnni")),
    "amx": ("x86_64", (*X86, "amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_vnni")),
    "arm": ("aarch64", ARM),
    "sve": ("aarch64", ARM_SVE),
}


class SpecError(ValueError):
    """A spec that was not understood: which part of it, and what is close to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may follow the name."""

    cpus: int | None = None
    features: tuple[str, ...] = ()
    memory_bytes: int | None = None


_OPTIONS = re.compile(
    r"(?::(?P<cpus>\d{1,9}))?(?P<features>(?:\+[a-z0-9]+)*)(?:,(?P<memory>\d{1,7}(?:\.\d{1,3})?)(?:gb|gib))?"
)
_SLICE = re.compile(r"(?:tpu-)?(v\d[ep]?)-(\d{1,5})(?=$|[:+,])")
TPU_SLICES = {"v2": (2, 4), "v3": (2, 4), "v4": (2, 4), "v5p": (2, 4), "v5e": (1, 8), "v6e": (1, 8)}
"""By generation: TensorCores that the name of a slice counts a chip, and the chips of the largest single host; slices of more hosts
have 4 chips in each (https://cloud.google.com/tpu/docs/v5p, /v5e, /v6e)"""
# Of a text of at most LONGEST characters; RunPod's names begin so, as 8x_H100-SXM_SECURE.
_TIMES = re.compile(r"(\d+) ?x ?(?=[^_])")


def parse_spec(text: str) -> Hardware:
    """The machine that the text describes (see the module's docstring); raises ``SpecError``."""
    wanted = " ".join(text.lower().replace("×", "x").split())
    if len(wanted) > LONGEST:
        raise SpecError(f"{wanted[:40]!r}… is too long for a machine ({len(wanted)} characters)")
    if not wanted:
        raise SpecError("empty; give a device (8xh100-sxm-80gb), cpu:16, or a cloud instance (p5.48xlarge)")
    counts, rest = _parse_counts(_spell_slice(wanted))
    if mig := split_spelling(rest):
        nodes, count = [1, 1, *counts][-2:]
        return _build_mig_machine(mig, nodes, count, text)
    name = re.split(r"[:+,]", rest, maxsplit=1)[0].strip()
    # Reading the instances takes milliseconds that a plain device id need not pay.
    instance = None if name in ("cpu", "grace") or catalog.resolve(name) else find_instance(rest.replace(" ", ""))
    if instance:
        if len(counts) > 1:
            raise SpecError(f"{text!r}: an instance takes one number before it, that of the nodes")
        device = catalog.load(instance.device) if instance.device else None
        return describe_instance(instance, device, counts[0] if counts else 1)
    options = _parse_options(rest[len(name) :].replace(" ", ""), text)
    if name == "grace":
        options = replace(options, cpus=options.cpus or GRACE.cores, features=(*options.features, "sve"))
        options = replace(options, memory_bytes=options.memory_bytes or GRACE.memory_gib * GIB)
    if name in ("cpu", "grace"):
        nodes, processes = [1, 1, *counts][-2:]
        if processes > MOST_DEVICES_PER_NODE:
            raise SpecError(f"{text!r}: {processes} processes on one CPU (at most {MOST_DEVICES_PER_NODE})")
        return _build_cpu_machine(options, nodes, processes, GRACE.name if name == "grace" else None)
    # One number is the devices, two are nodes and devices.
    nodes, count = [1, 1, *counts][-2:]
    device = _load_device(name, text)
    options = replace(options, memory_bytes=options.memory_bytes or _read_shared_memory(name, device, text))
    machine = _build_device_machine(device, nodes, count, options)
    return replace(machine, notes=(*_note_choice(name, device), *machine.notes))


def _spell_slice(wanted: str) -> str:
    """A slice as nodes and chips: ``tpu-v5e-8`` is ``1x8xtpu-v5e``. What is none stays as it is."""
    match = _SLICE.match(wanted)
    if not match or match[1] not in TPU_SLICES:
        return wanted
    cores, most = TPU_SLICES[match[1]]
    chips, rest = divmod(int(match[2]), cores)
    nodes, each = (1, chips) if chips <= most else (chips // 4, 4)
    if rest or not chips or nodes * each != chips:
        raise SpecError(
            f"{wanted!r}: no slice has this size; tpu-v5e-8 are 8 chips, tpu-v5p-8 are 4 chips of 2 TensorCores"
        )
    return f"{nodes}x{each}xtpu-{match[1]}{wanted[match.end() :]}"


def _parse_counts(wanted: str) -> tuple[list[int], str]:
    counts: list[int] = []
    position = 0
    while len(counts) < 2 and (match := _TIMES.match(wanted, position)):
        counts.append(int(match.group(1)))
        position = match.end()
    for value in counts:
        if not 1 <= value <= MOST_NODES:
            raise SpecError(f"{value} is not a number of devices or nodes (1 to {MOST_NODES})")
    return counts, wanted[position:]


def _parse_options(tail: str, text: str) -> Options:
    match = _OPTIONS.fullmatch(tail)
    if not match:
        if catalog.resolve(_parse_counts(tail.lstrip(",+&; "))[1]):
            raise SpecError(
                f"{text!r}: a spec is of equal devices; a machine of unequal ones is planned where it stands, or from the file of "
                "`perfgen detect --json` there"
            )
        raise SpecError(f"{text!r}: {tail!r} was not understood; options are :CPUS, +FEATURE and ,MEMORYgb")
    memory = match["memory"]
    if memory and float(memory) == 0:
        raise SpecError(f"{text!r}: a machine without memory")
    return Options(
        cpus=_check_cpus(match["cpus"], text),
        features=tuple(match["features"].split("+")[1:]),
        memory_bytes=round(float(memory) * GIB) if memory else None,
    )


def _check_cpus(digits: str | None, text: str) -> int | None:
    if digits is None:
        return None
    if not 1 <= int(digits) <= MOST_CPUS:
        raise SpecError(f"{text!r}: {digits} is not a number of CPUs (1 to {MOST_CPUS})")
    return int(digits)


def _load_device(name: str, text: str) -> Device:
    try:
        return catalog.load(name)
    except catalog.UnknownDevice as error:
        close = (
            *error.close,
            *difflib.get_close_matches(name.replace(" ", ""), list_instance_names(), n=3, cutoff=0.7),
        )
        hint = f"; close to it: {', '.join(close)}" if close else ""
        spelled = spell_processor(name)
        hint = _correct_count(text) or (f"; {spelled}" if spelled else hint)
        where = "" if name == text.lower() else f"{text!r}: "
        raise SpecError(f"{where}{name!r} is no device, no instance and not cpu{hint}") from error


def _read_shared_memory(name: str, device: Device, text: str) -> int | None:
    """``m4-max-64gb`` is one of several machines that are sold with this chip: its memory, which host and device share."""
    size = re.search(r"(?<!\d)(\d+) ?(?:gb|gib)$", name)
    if not device.unified_memory or device.memory_bytes is None or size is None:
        return None
    size_bytes = int(size[1]) * GIB
    if fits_memory(
        size_bytes, device.memory_bytes
    ):  # of the sizes that are sold, what is left of it: GB10's 128 are 122
        return None
    if not 0 < size_bytes < device.memory_bytes:
        raise SpecError(f"{text!r}: {device.name} is sold with {device.memory_bytes / GIB:.0f} GiB at most")
    return size_bytes


_PROCESSORS = re.compile(
    r"xeon|epyc|threadripper|ryzen|opteron|core (?:i\d|ultra)|i[3579]-|graviton|altra|axion|cobalt|neoverse|kunpeng|power\d+"
)


def spell_processor(name: str) -> str | None:
    """How a processor is written in a spec, where ``name`` is of one: they have no names there, and what they can do is said."""
    if not _PROCESSORS.search(name):
        return None
    hosts = (i.name for i in list_instances() if i.device is None and name in (i.cpu or "").lower())
    instance = next(hosts, "c7g.16xlarge")
    return f"a processor is said by its cores and what they can do: cpu:64+amx, cpu:64+sve (or an instance, {instance})"


def _correct_count(text: str) -> str:
    """People write the number of devices behind their name too."""
    written = re.fullmatch(r"(.*\w)[\s:*_-]*[x*×][\s_-]*(\d{1,3})", text, re.IGNORECASE)
    if written is None:
        return ""
    try:
        return f"; the number stands in front: {int(written[2])}x{catalog.load(written[1]).id}"
    except catalog.UnknownDevice:
        return ""


def _note_choice(name: str, device: Device) -> tuple[Note, ...]:
    """Which of several products a short name was taken for."""
    others = [i for i in catalog.list_alike(name) if i != device.id]
    if not others:
        return ()
    return (
        Note(field="boards.device", who="spec", why=f"{name} is taken for {device.id}; others: {', '.join(others)}"),
    )


def _build_mig_machine(mig: Spelled, nodes: int, count: int, text: str) -> Hardware:
    if mig.part:
        hint = f"name the instance alone: {mig.board}:{mig.profile}"
        raise SpecError(f"{text!r}: a compute instance ({mig.part}) is a part of a MIG instance: {hint}")
    named = _load_device(mig.board, text)
    # "a100:3g.20gb": of the boards that a short name can mean, one that has this instance.
    alike = [catalog.load(i) for i in catalog.list_alike(mig.board)]
    order = sorted(alike, key=lambda device: device.id.split("-")[:2] != named.id.split("-")[:2])
    device = next((d for d in (named, *order) if find_profile(d, mig.profile)), named)
    profile = find_profile(device, mig.profile)
    if profile is None:
        known = ", ".join(p.name for p in list_profiles(device))
        if known:
            raise SpecError(f"{text!r}: {device.id} has no MIG instance {mig.profile}; it has {known}")
        families = dict.fromkeys(re.sub(r"-(?:sxm|pcie|nvl|\d).*", "", board) for board in list_boards())
        raise SpecError(
            f"{text!r}: perfgen knows of no MIG instances of {device.id}; of these it does: {', '.join(families)}"
        )
    if mig.suffix.startswith("+me"):  # one instance of a board has the media engines
        profile = replace(profile, most=1)
    options = _parse_options(mig.rest.replace(" ", ""), text)
    if options.features:
        raise SpecError(f"+{options.features[0]} is not understood for a MIG instance")
    if count > MOST_DEVICES_PER_NODE:
        raise SpecError(f"{count} instances in one node (at most {MOST_DEVICES_PER_NODE})")
    machine = describe_mig_machine(
        device,
        profile,
        mig.profile + mig.suffix,
        count,
        nodes=nodes,
        cpus=options.cpus,
        memory_bytes=options.memory_bytes,
    )
    return replace(machine, notes=(*_note_choice(mig.board, device), *machine.notes))


def _build_cpu_machine(options: Options, nodes: int, processes: int, model: str | None = None) -> Hardware:
    unknown = [f for f in options.features if f not in CPU_FEATURES]
    if unknown:
        raise SpecError(f"+{unknown[0]} is no CPU feature that a spec can ask for: {', '.join(CPU_FEATURES)}")
    kinds = [CPU_FEATURES[f] for f in options.features]
    # "+bf16+arm" asks for two processors in one.
    architectures = sorted({architecture for architecture, _ in kinds}) or ["x86_64"]
    if len(architectures) > 1:
        raise SpecError(f"+{' +'.join(options.features)}: these are of different CPUs ({', '.join(architectures)})")
    features = tuple(sorted({f for _, each in kinds for f in each})) if kinds else None
    return describe_cpu_machine(
        architectures[0],
        features,
        cores=options.cpus,
        memory_bytes=options.memory_bytes,
        nodes=nodes,
        processes=processes,
        model=model,
    )


def _build_device_machine(device: Device, nodes: int, count: int, options: Options) -> Hardware:
    if count > MOST_DEVICES_PER_NODE:
        raise SpecError(f"{count} devices in one node (at most {MOST_DEVICES_PER_NODE}): write NODESxCOUNTx{device.id}")
    if device.is_alone and count > 1:
        machines = nodes * count
        raise SpecError(f"a machine has one {device.name}; {machines} machines of it are {machines}x1x{device.id}")
    unknown = [f for f in options.features if f != "nvlink"]
    if unknown:
        raise SpecError(f"+{unknown[0]} is not understood for {device.id}; +nvlink joins pairs by their bridges")
    bridged = "nvlink" in options.features
    if bridged and not device.link_bridge:
        raise SpecError(f"{device.name} has no optional NVLink bridge: drop +nvlink")
    return describe_device_machine(
        device, count, nodes=nodes, cpus=options.cpus, memory_bytes=options.memory_bytes, bridged=bridged
    )
