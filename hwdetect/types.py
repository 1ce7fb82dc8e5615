"""What a machine is, as frozen values.

Every type here is plain data: no I/O, no defaults that guess. A field that could
not be read is ``None`` and ``Hardware.notes`` says who could not read it; absent
never means zero. Sizes are bytes, rates bytes per second, power watts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One kind of CPU cache: ``level`` 1-4, ``kind`` data|instruction|unified, bytes of one, and how many."""

    level: int
    kind: str
    size_bytes: int | None
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreKind:
    """One kind of core of a hybrid processor and how many online CPUs are of it."""

    name: str
    cpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor, and how much of it this process may use.

    ``cores`` are distinct sibling sets online, ``cpus_allowed`` is affinity ∩ cpuset, ``quota`` the
    tightest CPU quota of the cgroup chain (in CPUs), ``budget`` = min(allowed, ceil(quota)).
    ``numa_nodes`` counts nodes with CPUs. ``cpus_listed`` are the numbered blocks of /proc/cpuinfo.
    """

    model_name: str | None = None
    architecture: str | None = None
    microarchitecture: str | None = None
    packages: int | None = None
    cores: int | None = None
    cpus_online: int | None = None
    cpus_allowed: int | None = None
    quota: float | None = None
    budget: int | None = None
    numa_nodes: int | None = None
    isa_features: tuple[str, ...] | None = None
    caches: tuple[Cache, ...] | None = None
    max_hz: int | None = None
    vendor: str | None = None
    cpus_listed: int | None = None
    core_kinds: tuple[CoreKind, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Host memory. ``limit_bytes`` is the tightest cgroup limit, ``None`` where there is none.

    ``numa_nodes`` counts nodes with memory, with or without CPUs; GPU memory that the kernel shows as nodes is in
    ``gpu_numa_nodes`` and not in ``total_bytes``. ``lockable_bytes`` is what this process may lock (RLIMIT_MEMLOCK), ``None``
    where there is no limit.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    shm_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    huge_pages_bytes: int | None = None
    numa_nodes: int | None = None
    gpu_numa_nodes: int | None = None
    lockable_bytes: int | None = None

    @property
    def usable_bytes(self) -> int | None:
        """What a process can have at most; ``None`` where neither was read."""
        return min((known for known in (self.total_bytes, self.limit_bytes) if known is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """The link of a board. ``generation`` falls on an idle GPU to save power; ``generation_load`` is under load."""

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    generation_load: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A physical device, as the vendor's tool lists it. ``device`` is the catalogue id, if one matches.

    ``memory_bytes`` is ``None`` on boards that share the host's memory (``unified_memory``). ``c2c``: a coherent link to
    the CPU is on (GH200, GB200). ``compute_units`` are multiprocessors or compute units. ``performance_state`` is NVIDIA's, from 0
    (highest clocks) to 15. ``state``: ok, or lost, reset-required and the like, as the driver says. ``integrated``: a graphics part of the CPU, left out of
    ``accelerators`` where a real board stands beside it.
    """

    index: int
    vendor: str
    name: str | None = None
    device: str | None = None
    uuid: str | None = None
    pci_id: str | None = None
    pci_address: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None
    mig_enabled: bool | None = None
    unified_memory: bool | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    performance_state: int | None = None
    persistence: bool | None = None
    ecc_enabled: bool | None = None
    ecc_errors: int | None = None
    repair_pending: bool | None = None
    compute_mode: str | None = None
    virtualization: str | None = None
    state: str | None = None
    pcie: Pcie = Pcie()
    compute_units: int | None = None
    integrated: bool | None = None
    c2c: bool | None = None
    architecture: str | None = None
    partition_mode: str | None = None
    memory_partition_mode: str | None = None
    nvlinks_active: int | None = None
    nvlink_bytes_per_s: float | None = None


# A board whose infoROM is corrupted computes, and what it counted (ECC) is lost; so does one that reports a warning or an alarm of its
# health (Ascend).
WORKING_STATES = frozenset({None, "ok", "corrupted-inforom", "warning", "alarm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What a job can be given: a board, or each of its MIG instances or partitions.

    ``board`` is the ``Board.index`` it lives on; ``profile`` names the slice, ``None`` for a whole board;
    ``compute_share`` is the share of the board's compute units (1.0 for a whole board).
    """

    index: int
    board: int
    name: str | None = None
    memory_bytes: int | None = None
    free_memory_bytes: int | None = None
    profile: str | None = None
    uuid: str | None = None
    compute_share: float | None = None
    compute_units: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection between two boards (by index). ``bandwidth_bytes_per_s`` is one direction, all links together.

    ``kind``: nvlink, xgmi, xelink, neuronlink, c2c, pcie, pix, pxb, phb, node, sys. ``p2p``: whether the driver allows peer access.
    """

    a: int
    b: int
    kind: str
    count: int | None = None
    bandwidth_bytes_per_s: float | None = None
    p2p: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPath:
    """How a board reaches a network port over PCIe. ``kind``: pix, pxb, phb, node, sys."""

    board: int
    port: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPort:
    """``kind``: infiniband, roce, efa, ethernet. ``rate_bytes_per_s`` is one direction.

    ``state`` is active, down, or what the driver says. ``virtual_functions`` counts the SR-IOV functions behind it.
    """

    name: str
    kind: str
    state: str | None = None
    rate_bytes_per_s: float | None = None
    numa_node: int | None = None
    pci_address: str | None = None
    virtual_functions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A place files go (``role``: work, cache, tmp). ``kind``: nvme, ssd, hdd, virtual, network, memory, overlay."""

    role: str
    path: str | None = None
    kind: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    read_bytes_per_s: float | None = None
    writable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions as strings; ``None`` = not installed or unreadable (``Hardware.notes`` tells which).

    ``open_files`` is how many files a process may have open (the soft RLIMIT_NOFILE, ``None``: no limit), ``open_files_most``
    how far it may raise that itself.
    """

    os: str | None = None
    kernel: str | None = None
    python: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    torch: str | None = None
    torch_build: str | None = None
    nccl: str | None = None
    packages: tuple[tuple[str, str], ...] = ()
    container: str | None = None
    wsl: bool | None = None
    virtualization: str | None = None
    visible_devices: str | None = None
    open_files: int | None = None
    open_files_most: int | None = None

    @property
    def is_virtual(self) -> bool:
        """Whether the processor says that this is a virtual machine."""
        return self.virtualization not in (None, "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The allocation this process is part of. ``source``: slurm, pbs, lsf, torchrun, mpi, kubernetes, tpu, spec or single."""

    count: int = 1
    source: str = "single"
    scheduler_cpus: int | None = None
    scheduler_gpus: int | None = None
    scheduler_memory_bytes: int | None = None
    processes: int | None = None
    rank: int | None = None


SAME_RATE = 0.1
"""share by which figures of the same thing may differ"""
MEASURED_BY, NOT_USED = "--measure", " is not used: "
"""who tells of a measurement, and what stands between a figure that was left out and the reason"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number that ``detect --measure`` took: ``what`` e.g. host_memory_bandwidth, matmul; SI units.

    ``basis`` is "measured", beside the "published" of catalogue numbers: a measured one is to be preferred. ``size``: rows and columns
    of the matrices of a product. ``spread``: by what share of ``value`` its rounds and its visits, seconds apart, differed; above 0.1
    something else had a part in it that this system does not see (the neighbours of a virtual machine).
    """

    what: str
    where: str
    value: float
    unit: str
    dtype: str | None = None
    basis: str = "measured"
    size: int | None = None
    spread: float | None = None

    @property
    def unsteady(self) -> bool:
        return self.spread is not None and self.spread > SAME_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong or wasteful about the machine, what shows it, and what to do."""

    id: str
    severity: Literal["info", "warning", "error"]
    what: str
    evidence: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A reading that could not be taken: the field, who tried, and why it failed."""

    field: str
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine (or one of ``nodes.count`` equal machines). ``schema`` numbers the JSON form."""

    schema: int = SCHEMA
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    boards: tuple[Board, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    links: tuple[Link, ...] = ()
    network: tuple[NetworkPort, ...] = ()
    paths: tuple[PciPath, ...] = ()
    disks: tuple[Disk, ...] = ()
    software: Software = Software()
    nodes: Nodes = field(default_factory=Nodes)
    measured: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A catalogue entry: what a product can do, from its maker's data sheet (``hwdetect/devices/*.toml``).

    ``peak_flops`` are dense rates per dtype (fp64, fp32, tf32, fp16, bf16, fp8, fp4, int8), operations per second;
    ``vector_flops`` the same without matrix units. ``link_bytes_per_s`` is one direction, all ``link_count`` links of one board;
    ``link_bridge``: the link is an optional bridge between two boards; ``link_rack``: it joins so many over the nodes of a rack.
    ``p2p``: peer access without a bridge.
    ``host_bytes_per_s`` is one direction between host and device: NVLink-C2C where there is one, else its PCIe link.
    ``tiles``: parts that the maker's runtime lists as devices of their own, with equal shares of everything here.
    ``market``: who alone can get it (china, aws, custom: made for one computer; announced: figures are preliminary), ``None`` for anyone.
    ``sources`` pairs every dotted field name with its URL.
    """

    id: str
    vendor: str
    name: str
    kind: Literal["gpu", "tpu", "accelerator", "cpu"] = "gpu"
    architecture: str | None = None
    aliases: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    compute_capability: str | None = None
    memory_bytes: int | None = None
    memory_kind: str | None = None
    memory_bytes_per_s: float | None = None
    unified_memory: bool = False
    l2_bytes: int | None = None
    compute_units: int | None = None
    tiles: int = 1
    peak_flops: tuple[tuple[str, float], ...] = ()
    vector_flops: tuple[tuple[str, float], ...] = ()
    link_kind: str | None = None
    link_bytes_per_s: float | None = None
    link_count: int | None = None
    link_bridge: bool = False
    link_rack: int | None = None
    p2p: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    host_bytes_per_s: float | None = None
    tdp_watts: float | None = None
    market: str | None = None
    sources: tuple[tuple[str, str], ...] = ()
    basis: str = "published"

    @property
    def is_alone(self) -> bool:
        """One that shares its host's memory and has no links to others: a machine has no second (a GB10, a Jetson)."""
        return self.unified_memory and self.link_kind is None

    def flops(self, dtype: str) -> float | None:
        """Dense peak for ``dtype`` in operations per second, or ``None`` where the maker states none."""
        return dict(self.peak_flops).get(dtype)
