"""The one seam to the outside world: what a probe can ask of a machine, and the values it gets back.

Probes ask a ``Machine`` and nothing else: no ``open``, no ``os.environ``, no ``platform``. Paths are written without the
leading slash (``proc/cpuinfo``). What cannot be read is ``None``, an empty listing or an ``Output`` without text; no
method raises for anything a machine can do. ``live.py`` reads this machine, ``recorded.py`` replays a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command printed, or why there is nothing: ``problem`` is ``None`` when it ran and ended by itself."""

    text: str | None = None
    code: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A mounted place: bytes in all and free for this user."""

    total_bytes: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, slots=True)
class NvmlLibrary:
    """NVIDIA's management library can be loaded here. It is not loaded: ask it in a child process, which may hang."""


class Machine(Protocol):
    """Where readings come from. ``live`` is False for a recording, which then answers for everything."""

    live: bool

    def read(self, path: str) -> str | None:
        """The text of a file, ``None`` if it cannot be read."""
        ...

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty if there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def resolve_link(self, path: str) -> str | None:
        """Where a path really is, relative to the root; ``None`` if it is nowhere or leaves the root."""
        ...

    def run(self, argv: tuple[str, ...], seconds: float) -> Output:
        """What a tool prints in the C locale, within ``seconds``."""
        ...

    def get_variable(self, name: str) -> str | None:
        """An environment variable."""
        ...

    def get_system(self) -> str:
        """Linux, Darwin or Windows."""
        ...

    def get_architecture(self) -> str | None: ...

    def get_affinity(self) -> frozenset[int] | None:
        """The CPUs that this process may be scheduled on."""
        ...

    def count_resources(self) -> tuple[int | None, int | None]:
        """CPUs and bytes of memory by the system's own calls, for machines whose files cannot be read."""
        ...

    def is_amx_permitted(self) -> bool | None:
        """Whether the kernel lets this process use AMX tiles."""
        ...

    def get_space(self, path: str) -> Space | None:
        """Room under a mounted path."""
        ...

    def get_working_folder(self) -> str: ...

    def get_system_name(self) -> str | None: ...

    def get_python_version(self) -> str | None: ...

    def list_packages(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """(name, version) of those Python packages that are installed."""
        ...

    def get_torch_build(self) -> str | None:
        """``cu130``, ``rocm6.4``, ``xpu`` or ``cpu``."""
        ...

    def find_nvml(self) -> object:
        """A sentence that says why there is no NVML, ``NvmlLibrary``, or an object that answers like ``pynvml``."""
        ...
