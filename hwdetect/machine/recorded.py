"""A recording folder, replayed as if it were a machine."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from hwdetect.machine.commands import COMMAND_FILES
from hwdetect.machine.cpu_lists import parse_cpu_list, parse_cpu_mask
from hwdetect.machine.folder import Folder
from hwdetect.machine.protocol import Output, Space


class Recorded(Folder):
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

    def get_variable(self, name: str) -> str | None:
        raw = self.read_bytes("proc/self/environ")
        pairs = (part.decode("utf-8", "replace").partition("=") for part in (raw or b"").split(b"\0"))
        return next((value for key, sep, value in pairs if sep and key == name), None)

    def get_system(self) -> str:
        if self.exists("sysctl.txt"):
            return "Darwin"
        return "Windows" if self.exists("cpuid.csv") else "Linux"

    def get_architecture(self) -> str | None:
        return (self.read("proc/sys/kernel/arch") or "").strip() or None

    def get_affinity(self) -> frozenset[int] | None:
        status = dict(line.partition(":")[::2] for line in (self.read("proc/self/status") or "").splitlines())
        listed = parse_cpu_list(status.get("Cpus_allowed_list"))
        # Kernels before 2.6.26 print the mask alone.
        return listed if listed is not None else parse_cpu_mask(status.get("Cpus_allowed"))

    def count_resources(self) -> tuple[int | None, int | None]:
        return None, None

    def is_amx_permitted(self) -> bool | None:
        return None

    def get_space(self, path: str) -> Space | None:
        return None

    def get_working_folder(self) -> str:
        return "/"

    def get_system_name(self) -> str | None:
        return None

    def get_python_version(self) -> str | None:
        return None

    def list_packages(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return ()

    def get_torch_build(self) -> str | None:
        return None

    def find_nvml(self) -> str:
        return "not in the recording"
