"""This machine, read as it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from hwdetect.machine.folder import Folder
from hwdetect.machine.protocol import NvmlLibrary, Output, Space

TOOLS_END_BEFORE_S = 0.7  # before the common deadline


def _count_physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # no such names on this system
        return None


class Live(Folder):
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
        from hwdetect.machine.process import run_command  # subprocess costs milliseconds: only where a tool exists

        return run_command(argv, min(seconds, self.remaining()))

    def get_variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def get_system(self) -> str:
        """Linux, Darwin or Windows."""
        import sys

        return {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}.get(sys.platform, sys.platform)

    def get_architecture(self) -> str | None:
        import platform

        return platform.machine() or None

    def get_affinity(self) -> frozenset[int] | None:
        """The CPUs that this process may be scheduled on, ``None`` where the system cannot say."""
        if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
            return None
        try:
            return frozenset(os.sched_getaffinity(0))
        except OSError:
            return None

    def count_resources(self) -> tuple[int | None, int | None]:
        """CPUs and bytes of memory as the system's own calls give them: for machines whose files cannot be read."""
        import psutil

        try:
            return os.cpu_count(), psutil.virtual_memory().total
        except (OSError, psutil.Error):  # psutil reads /proc/meminfo on Linux
            return os.cpu_count(), _count_physical_memory()

    def is_amx_permitted(self) -> bool | None:
        """Whether the kernel lets this process use AMX tiles (arch_prctl ARCH_GET_XCOMP_SUPP, bit 18: tile data)."""
        import ctypes

        supported = ctypes.c_ulonglong(0)
        try:
            answer = ctypes.CDLL(None, use_errno=True).syscall(158, 0x1021, ctypes.byref(supported))
        except (OSError, AttributeError):
            return None
        return answer == 0 and bool(supported.value >> 18 & 1)

    def get_space(self, path: str) -> Space | None:
        import shutil

        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return None
        return Space(total_bytes=usage.total, free_bytes=usage.free, writable=os.access(path, os.W_OK))

    def get_working_folder(self) -> str:
        """The working folder, or the root where it has been deleted."""
        try:
            return os.getcwd()  # noqa: PTH109
        except OSError:
            return "/"

    def get_system_name(self) -> str | None:
        import platform

        return " ".join(part for part in (platform.system(), platform.release()) if part) or None

    def get_python_version(self) -> str | None:
        import platform

        return platform.python_version()

    def list_packages(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        from hwdetect.machine.installed import list_versions

        return list_versions(names)

    def get_torch_build(self) -> str | None:
        from hwdetect.machine.installed import read_torch_build

        return read_torch_build()

    def find_nvml(self) -> NvmlLibrary | str:
        """That NVML is here and can be asked in a child process, or a sentence that says why not."""
        from hwdetect.machine.nvml_library import NO_LIBRARY, is_findable

        return NvmlLibrary() if is_findable() else NO_LIBRARY
