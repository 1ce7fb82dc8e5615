"""What a row of a vendor is, and what it may say of its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from generator.case.workload import Workload
from generator.model import ModelSpec
from hwdetect.types import Device

TENSOR_CORE_MULTIPLE = 8
"""values in 16 bits (NVIDIA's deep learning performance guide, "Matrix Multiplication Background")"""

ABILITIES = {
    "bf16": "it has no bf16 arithmetic",
    "fp16": "it has no fp16 arithmetic worth the overflows",
    "tf32": "TF32 exists on NVIDIA GPUs only",
    "fp8": "it multiplies no 8-bit floating point that torchao casts to",
    "cudnn-attention": "PyTorch takes cuDNN's attention on Hopper and datacenter Blackwell alone",
    "flash": "its scaled_dot_product_attention has no kernel that never holds the scores",
    "efficient": "its scaled_dot_product_attention has no memory-efficient kernel that was checked",
    "flash-check": "PyTorch cannot be asked which kernel of attention it would take",
    "hub-flash": "the prebuilt kernel needs an NVIDIA GPU of compute capability 8.0 or more",
    "wide-backward": "its flash kernel has no backward pass for heads of 200 to 224",
    "varlen": "PyTorch's flash kernel needs an NVIDIA GPU of compute capability 8.0 or more",
    "compile": "torch.compile was not run there",
    "compiled-decode": "generate compiles by itself on accelerators only",
    "graphs": "CUDA graphs are of NVIDIA's devices alone",
    "triton": "Triton writes no kernels for it",
    "tinygemm": "PyTorch's product with 4-bit weights was read for NVIDIA GPUs of compute capability 8.0 or more",
    "liger": "Liger's kernels need Triton on an NVIDIA GPU of compute capability 7.5 or more",
    "torch.cuda": "its package needs CUDA",
    "fsdp": "Accelerate shards on accelerators only; elsewhere it silently runs DDP",
    "sharding-marks": "SPMD is PyTorch/XLA's way to divide a model",
    "growing-segments": "its allocator has no segments that grow",
    "numa-binding": "torchrun asks CUDA near which CPUs a GPU is (torch/numa/binding.py)",
    "pinned-memory": "PyTorch pins no memory of the host for it",
    "nvcc": "DeepSpeed compiles its reader of disks with nvcc",
    "llama.cpp": "its wheels of the registry are for CPUs and Macs",
}
"""What techniques and emission ask of a device, each with what is said where a vendor does not list it."""

Rule = Callable[[Device], str | None]
"""why a device has not the ability, or ``None``"""


def has(device: Device) -> str | None:
    """The rule of an ability that every device of a vendor has."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a container needs to reach the devices: ``flags`` of `docker run`, and ``compose``, keys of a service of Compose with
    ``compose_environment`` beside its other variables."""

    flags: tuple[str, ...] = ()
    compose: Mapping[str, Any] = field(default_factory=dict)
    compose_environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """Libraries of a maker that no package registry has, and that torch loads as it is imported: its ``title``, the ``variable`` that
    tells that a shell knows them, the command by which it does, and an ``image`` that has them."""

    title: str
    variable: str
    set_by: str
    image: str


PYTORCH = "pytorch"
"""the framework of whoever names none, where the vendor has no other"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """A project with a training of its own in the place of Trainer's, for what Trainer cannot run, or runs otherwise than it must.

    ``leaves`` are its scripts, by module; ``sequences`` the leaf that makes rows, by task. ``techniques`` are those that its code
    holds, by id: all others are no part of it. ``role`` is its stack. ``multiple``: to what lengths are padded. ``packages`` are what
    it takes of the stack. ``untested`` says what nobody ran, ``beside`` what else a user could take and why it is not emitted.
    ``explain_work``: why it is not for a kind of work and a model, or ``None``. ``reasons``: why what its scripts pass to a library is
    what it is, by keyword; and its vendor's ``environment``, by variable.
    """

    role: str
    packages: tuple[str, ...]
    leaves: Mapping[str, str]
    sequences: Mapping[str, str]
    techniques: frozenset[str]
    multiple: int
    explain_work: Callable[[Workload, ModelSpec], str | None]
    untested: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A maker's accelerators of one kind, as PyTorch runs them.

    ``devices`` are (maker, kind) as hwdetect has them. ``title`` is what one is called in a sentence, ``torch_device`` the device
    string of PyTorch, ``guard`` the leaf of templates/fragments/machine that compares the machine, ``backend`` the one of
    torch.distributed, ``visible_devices`` the variable that hides devices; ``set_beside`` gives what must be set beside it for so many
    devices, and ``sees_all`` says that one process takes all that it sees.
    ``choose_build`` names the build of torch from role, device and driver; it raises ``UsageError`` where none runs.
    ``abilities`` has a rule for each that the vendor's devices may have. ``missing`` are distributions that it cannot have, with
    the reason. ``pad_to_multiple_of``: lengths in tokens that its matrix units like. ``environment``: variables
    that every script is started with. ``kubernetes`` is the resource of one device,
    ``group_file`` the file of the host by whose group they are opened; ``None``: whoever is given them may.
    ``contain`` says how a container reaches the devices of that list, all where there is none, of this kind; ``None``: there are no containers.
    ``reach_memory`` gives the bytes that PyTorch reports of a memory of the device's own: drivers keep the rest of what a tool shows.
    ``share_memory`` gives the bytes that a process can use of a memory that a device shares with its host, ``more_memory`` says how it gets
    more of it, and ``reports_shared_memory`` whether PyTorch reports all of it, and not the share. ``explain_unemitted``: why no project can be made for one,
    ``explain_doubt``: why one that is made may not run.
    ``collectives`` is the library behind ``backend``, ``triton_compiler`` the command by which Triton
    builds its launchers. ``list_targets``: what its kernels are compiled for, where that has a name.
    ``why_alone``: why several machines of it, or several in one, are no job's; ``None`` where they are.
    ``engines``: of an engine that computes otherwise there than on a CPU, the row that has its cost (generator.cost.engines).
    ``framework`` is what computes on it, ``skeleton`` the project that is made of it where that is not Trainer's.
    ``recommended``: named to whoever has a CPU alone, and too little of it.
    """

    name: str
    devices: tuple[tuple[str, str], ...] = ()
    title: str
    torch_device: str
    guard: str
    backend: str
    collectives: str = ""
    triton_compiler: str = "gcc"
    list_targets: Callable[[Device], tuple[str, ...]] = lambda device: ()
    visible_devices: str | None = None
    set_beside: Callable[[int], str | None] = lambda count: None
    sees_all: bool = False
    choose_build: Callable[[str, Device, str | None], str]
    abilities: Mapping[str, Rule] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    pad_to_multiple_of: int | None = None
    environment: tuple[tuple[str, str], ...] = ()
    kubernetes: str | None = None
    group_file: str | None = None
    toolkit: Toolkit | None = None
    contain: Callable[[str | None, Device], Container] | None = lambda visible, device: Container()
    reach_memory: Callable[[Device, int], int] = lambda device, memory_bytes: memory_bytes
    share_memory: Callable[[Device, int], int] = lambda device, memory_bytes: memory_bytes
    more_memory: str = ""
    reports_shared_memory: bool = False
    explain_unemitted: Rule = has
    explain_doubt: Rule = has
    recommended: bool = False
    why_alone: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)
    framework: str = PYTORCH
    skeleton: Skeleton | None = None

    def explain_missing(self, ability: str, device: Device) -> str | None:
        """Why ``device`` has not the ability, or ``None``. KeyError for a word that is none of ``ABILITIES``."""
        default = ABILITIES[ability]
        rule = self.abilities.get(ability)
        return rule(device) if rule else default
