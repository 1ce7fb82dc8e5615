"""The server that is measured: waited for, and watched."""

import http.client
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench_requests import Client
from terminal import escape_control

GIB = 1 << 30
LOOK_SECONDS = 0.1
LOADING = (502, 503, 504)
"""A server that is loading, or a proxy before one."""
STRANGER_SECONDS = 10.0
"""For a server that is to run already to answer at all."""
AMD_CARDS = Path("/sys/class/drm")
AMD_MEMORY = ("mem_info_vram_used", "mem_info_gtt_used")
"""Of the amdgpu driver: bytes on a board, and those of the host that it uses (all, where the two share a memory)."""
SHOWN_LINES = 15
"""Of a server's log, where it ended before it answered."""


def wait_until_ready(client: Client, process: subprocess.Popen | None, log: Path, tell: Callable) -> float:
    """Seconds until it answers. Ends the process where the server has ended, with the end of its log; where one that
    runs already is none, or of another kind."""
    started = time.perf_counter()
    while True:
        try:
            status, problem = client.get("/health")[0], None
        except (OSError, http.client.HTTPException) as error:
            status, problem = None, f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        if status == 200:
            return seconds
        if process is None and (status not in (None, *LOADING) or (status is None and seconds > STRANGER_SECONDS)):
            reason = f"/health is answered with {status}" if status is not None else escape_control(str(problem)[:200])
            sys.exit(f"--url: no server of this kind answers there: {reason}")
        if process is not None and process.poll() is not None:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
            lines = [
                *map(escape_control, last),
                f"serve.sh ended with {process.returncode} before it answered; see {log}",
            ]
            sys.exit("\n".join(lines))
        tell(f"waiting for the server: {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)


def ask_peak_gib(client: Client) -> float | None:
    """Memory of the accelerator at the peak, as the server counts it: for makers without NVML."""
    lines = client.get("/metrics")[1].decode().splitlines()
    return next((float(line.split()[1]) / GIB for line in lines if line.startswith("peak_memory_bytes ")), None)


def measure_peak_gib(process: int) -> float | None:
    """Resident memory at the peak of a process and of all that it started, each at its own. Linux keeps it."""
    if sys.platform != "linux":
        return None
    total = 0
    for number in list_tree(process):
        with suppress(OSError):
            lines = Path(f"/proc/{number}/status").read_text(encoding="utf-8").splitlines()
            total += next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    return total * 1024 / GIB or None  # of one that has ended nothing is kept


def list_tree(process: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # the name in brackets may hold blanks and brackets itself
            parents[int(place.parent.name)] = int(place.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    tree = [process]
    for number in tree:  # grows while it is read
        tree += [child for child, parent in parents.items() if parent == number]
    return tree


class DeviceMemory:
    """Memory in use on all GPUs, above what was in use before the server began: by NVML of NVIDIA's, by files of
    their driver of AMD's."""

    def __init__(self) -> None:
        self.handles: list = []
        self.files: list[Path] = []
        with suppress(ImportError):
            import pynvml

            self.nvml = pynvml
            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self.handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        if not self.handles:
            self.files = [file for name in AMD_MEMORY for file in sorted(AMD_CARDS.glob(f"card*/device/{name}"))]
        self.before = self.read()
        self.peak = 0

    def read(self) -> int:
        held = [int(file.read_text(encoding="utf-8")) for file in self.files]
        return sum(held) + sum(self.nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self.handles)

    def look(self) -> None:
        self.peak = max(self.peak, self.read() - self.before)

    @property
    def peak_gib(self) -> float | None:
        return self.peak / GIB if self.handles or self.files else None

    @property
    def names(self) -> list[str]:
        named = [str(self.nvml.nvmlDeviceGetName(handle)) for handle in self.handles]
        for card in sorted({file.parent for file in self.files}):
            with suppress(OSError):  # boards for servers have it
                named.append((card / "product_name").read_text(encoding="utf-8").strip())
        return named
