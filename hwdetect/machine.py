"""The one seam to the outside world: ``Live`` reads this machine, ``Recorded`` replays a folder.

Probes ask a ``Machine`` and nothing else: no ``open``, no ``os.environ``, no ``platform``. Paths are written without the
leading slash (``proc/cpuinfo``). What cannot be read is ``None``, an empty listing or an ``Output`` without text; no
method raises for anything a machine can do. Every command runs with ``LC_ALL=C`` and its own deadline, in its own
process group, so that neither a hanging tool nor its children can hold up the reader.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_FILE_BYTES = 32 << 20  # the largest honest recording file (rocm-smi of eight boards) is under 1 MiB

TOOLS_END_BEFORE_S = 0.7  # before the common deadline

SMI_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,uuid,pci.bus_id,pci.device_id,compute_cap,memory.total,memory.free",
    "--format=csv",
)

# How a recording names what a command printed (a real recording has no process to run).
COMMAND_FILES: dict[tuple[str, ...], str] = {
    ("nvidia-smi", "-q", "-x"): "nvidia-smi.xml",
    ("nvidia-smi", "-q"): "nvidia-smi-q.txt",
    ("nvidia-smi", "-L"): "nvidia-smi-list.txt",
    ("nvidia-smi", "topo", "-m"): "nvidia-smi-topo.txt",
    ("nvidia-smi", "nvlink", "-s"): "nvidia-smi-nvlink.txt",
    SMI_QUERY: "nvidia-smi-query.csv",
    ("nvidia-smi", "--version"): "nvidia-smi-version.txt",
    ("rocm-smi", "-a", "--json"): "rocm-smi.json",
    ("amd-smi", "static", "--json"): "amd-smi-static.json",
    ("amd-smi", "metric", "--json"): "amd-smi-metric.json",
    ("amd-smi", "topology", "--json"): "amd-smi-topology.json",
    ("xpu-smi", "discovery", "--dump", "-1"): "xpu-smi-discovery.csv",
    ("xpu-smi", "discovery", "-j"): "xpu-smi-discovery.json",
    ("sysctl", "-a"): "sysctl.txt",
    ("vm_stat",): "vm_stat.txt",
    ("system_profiler", "-json", "SPDisplaysDataType"): "system_profiler-displays.json",
    ("tpu-info",): "tpu-info.txt",
    ("hl-smi", "-L"): "hl-smi-list.txt",
    ("hl-smi", "-Q", "index,uuid,name,memory.total,memory.used", "-f", "csv"): "hl-smi.csv",
    ("neuron-ls", "--json-output"): "neuron-ls.json",
    ("npu-smi", "info"): "npu-smi.txt",
}


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


class Machine(Protocol):
    """Where readings come from. ``live`` is False for a recording, which then answers for everything."""

    live: bool

    def read(self, path: str) -> str | None: ...

    def listing(self, path: str) -> tuple[str, ...]: ...

    def exists(self, path: str) -> bool: ...

    def link(self, path: str) -> str | None: ...

    def run(self, argv: tuple[str, ...], seconds: float) -> Output: ...

    def environment(self, name: str) -> str | None: ...

    def system(self) -> str: ...

    def architecture(self) -> str | None: ...

    def affinity(self) -> frozenset[int] | None: ...

    def counted(self) -> tuple[int | None, int | None]: ...

    def amx_permitted(self) -> bool | None: ...

    def space(self, path: str) -> Space | None: ...

    def folder(self) -> str: ...

    def system_name(self) -> str | None: ...

    def python_version(self) -> str | None: ...

    def packages(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]: ...

    def torch_build(self) -> str | None: ...

    def nvml(self): ...


def clean(raw: bytes) -> str:
    """Text of a reading: undecodable bytes replaced, NUL bytes (real ones are in /sys) dropped."""
    return raw.decode("utf-8", "replace").replace("\0", "")


class _Folder:
    """Reading below a root folder, shared by both kinds of machine."""

    def __init__(self, root: Path):
        self.root = str(root)
        self._real: str | None = None

    def _path(self, path: str) -> str | None:
        return f"{self.root.rstrip('/')}/{path}"

    def read(self, path: str) -> str | None:
        """The whole text of a file, ``None`` if it cannot be read."""
        raw = self.read_bytes(path)
        return None if raw is None else clean(raw)

    def read_bytes(self, path: str) -> bytes | None:
        where = self._path(path)
        if where is None:
            return None
        try:
            # O_NONBLOCK: a FIFO or a device in the tree must not hold the reader.
            descriptor = os.open(where, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError):
            return None
        try:
            return _read_all(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def listing(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty if there is none."""
        where = self._path(path)
        try:
            return tuple(sorted(os.listdir(where))) if where is not None else ()  # noqa: PTH208 (speed: many folders)
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        where = self._path(path)
        return where is not None and os.path.exists(where)  # noqa: PTH110

    def link(self, path: str) -> str | None:
        """Where a path really is, relative to the root; ``None`` if it is nowhere or leaves the root."""
        where = self._path(path)
        if where is None or not os.path.exists(where):  # noqa: PTH110
            return None
        real = os.path.realpath(where)
        root = self._real_root()
        return real[len(root) :].lstrip("/") if real.startswith(root) else None

    def _real_root(self) -> str:
        if self._real is None:
            self._real = os.path.realpath(self.root)
        return self._real


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # no such names on this system
        return None


def _read_all(descriptor: int) -> bytes:
    chunks, size = [], 0
    while size < MAX_FILE_BYTES:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


class Live(_Folder):
    """This machine. Commands share one budget of ``deadline_s`` seconds from the moment this object is made."""

    live = True

    def __init__(self, deadline_s: float = 5.0):
        super().__init__(Path("/"))
        # A tool that is stopped at the end leaves its probe the time to tell what it has.
        self._ends = time.monotonic() + deadline_s - min(TOOLS_END_BEFORE_S, deadline_s / 4)

    def remaining(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def run(self, argv: tuple[str, ...], seconds: float) -> Output:
        """Run a tool in the C locale; it is killed with its whole group after ``seconds`` or at the common deadline."""
        from hwdetect.command import run_command  # subprocess costs milliseconds: only where a tool exists

        return run_command(argv, min(seconds, self.remaining()))

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def system(self) -> str:
        """Linux, Darwin or Windows."""
        import sys

        return {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}.get(sys.platform, sys.platform)

    def architecture(self) -> str | None:
        import platform

        return platform.machine() or None

    def affinity(self) -> frozenset[int] | None:
        """The CPUs that this process may be scheduled on, ``None`` where the system cannot say."""
        if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
            return None
        try:
            return frozenset(os.sched_getaffinity(0))
        except OSError:
            return None

    def counted(self) -> tuple[int | None, int | None]:
        """CPUs and bytes of memory as the system's own calls give them: for machines whose files cannot be read."""
        import psutil

        try:
            return os.cpu_count(), psutil.virtual_memory().total
        except (OSError, psutil.Error):  # psutil reads /proc/meminfo on Linux
            return os.cpu_count(), _physical_memory()

    def amx_permitted(self) -> bool | None:
        """Whether the kernel lets this process use AMX tiles (arch_prctl ARCH_GET_XCOMP_SUPP, bit 18: tile data)."""
        import ctypes

        supported = ctypes.c_ulonglong(0)
        try:
            answer = ctypes.CDLL(None, use_errno=True).syscall(158, 0x1021, ctypes.byref(supported))
        except (OSError, AttributeError):
            return None
        return answer == 0 and bool(supported.value >> 18 & 1)

    def space(self, path: str) -> Space | None:
        import shutil

        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return None
        return Space(total_bytes=usage.total, free_bytes=usage.free, writable=os.access(path, os.W_OK))

    def folder(self) -> str:
        """The working folder, or the root where it has been deleted."""
        try:
            return os.getcwd()  # noqa: PTH109
        except OSError:
            return "/"

    def system_name(self) -> str | None:
        import platform

        return " ".join(part for part in (platform.system(), platform.release()) if part) or None

    def python_version(self) -> str | None:
        import platform

        return platform.python_version()

    def packages(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        from hwdetect.installed import versions

        return versions(names)

    def torch_build(self) -> str | None:
        from hwdetect.installed import torch_build

        return torch_build()

    def nvml(self):
        """NVML as a child process asks it, or a sentence that says why not."""
        from hwdetect.nvml_library import NO_LIBRARY, findable

        if not findable():
            return NO_LIBRARY
        from hwdetect.nvml_child import Apart

        return Apart()


class Recorded(_Folder):
    """A recording folder. Nothing of the machine that replays it is asked, and no link leads out of the folder."""

    live = False

    def __init__(self, root: Path):
        super().__init__(root)

    def _path(self, path: str) -> str | None:
        where = super()._path(posixpath.normpath(path))
        assert where is not None
        real, root = os.path.realpath(where), self._real_root()
        if real == root or real.startswith(root + os.sep):
            return real
        # An absolute link of the recorded machine means a place in the recording, not one of this machine.
        return self._rerooted(path)

    def _rerooted(self, path: str) -> str | None:
        place, root = self._real_root(), self._real_root()
        parts = [part for part in path.split("/") if part]
        for _ in range(256):  # links may form loops
            if not parts:
                return place
            part = parts.pop(0)
            if part == "..":
                place = root if place == root else os.path.dirname(place)  # noqa: PTH120
                continue
            step = f"{place}/{part}"
            if os.path.islink(step):  # noqa: PTH114
                target = os.readlink(step)  # noqa: PTH115
                place = root if target.startswith("/") else place
                parts = [p for p in target.split("/") if p not in ("", ".")] + parts
            else:
                place = step
        return None

    def run(self, argv: tuple[str, ...], seconds: float) -> Output:
        """The recorded output of that command, by the file names of ``COMMAND_FILES``."""
        name = COMMAND_FILES.get(argv)
        text = self.read(name) if name else None
        return Output(problem="not in the recording") if text is None else Output(text=text, code=0)

    def environment(self, name: str) -> str | None:
        raw = self.read_bytes("proc/self/environ")
        pairs = (part.decode("utf-8", "replace").partition("=") for part in (raw or b"").split(b"\0"))
        return next((value for key, sep, value in pairs if sep and key == name), None)

    def system(self) -> str:
        if self.exists("sysctl.txt"):
            return "Darwin"
        return "Windows" if self.exists("cpuid.csv") else "Linux"

    def architecture(self) -> str | None:
        return (self.read("proc/sys/kernel/arch") or "").strip() or None

    def affinity(self) -> frozenset[int] | None:
        from hwdetect.probes.lists import cpu_list, cpu_mask

        said = dict(line.partition(":")[::2] for line in (self.read("proc/self/status") or "").splitlines())
        listed = cpu_list(said.get("Cpus_allowed_list"))
        return listed if listed is not None else cpu_mask(said.get("Cpus_allowed"))

    def counted(self) -> tuple[int | None, int | None]:
        return None, None

    def amx_permitted(self) -> bool | None:
        return None

    def space(self, path: str) -> Space | None:
        return None

    def folder(self) -> str:
        return "/"

    def system_name(self) -> str | None:
        return None

    def python_version(self) -> str | None:
        return None

    def packages(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return ()

    def torch_build(self) -> str | None:
        return None

    def nvml(self):
        return "not in the recording"
