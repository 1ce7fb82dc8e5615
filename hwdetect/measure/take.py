"""What a data sheet cannot say, timed in seconds: host memory, disk, and through torch every device and pair.

Everything that needs torch runs in a child process with its own clock (``torch_child``), so that this process keeps
no device context and a hanging driver costs a known time.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hwdetect.machine.process import Lines, Program, build_own_command, isolate_python
from hwdetect.measure.load import watch_load
from hwdetect.measure.messages import Doubt, collect_measurements
from hwdetect.measure.rounds import take_rounds
from hwdetect.types import SAME_RATE, Hardware, Measurement, Note

COPY_BYTES = 256 << 20  # at least; and four times the last-level caches, as STREAM's rules want it
MEMORY_SHARE = 1 / 8  # of what is available: the most that the copies may take
COPY_SECONDS = 0.25
FILE_BYTES = 256 << 20
BLOCK_BYTES = 8 << 20
READ_SECONDS = 4.0
LEAST_READS = 8
"""of a disk that others use too: fewer have no undisturbed one among them"""
TORCH_SECONDS = 120.0


def measure_hardware(hardware: Hardware, progress: Callable[[str], None]) -> Hardware:
    """``hardware`` with what was measured, and a note for every figure that is missing or unsteady."""
    notes: list[Note] = []

    def tell(text: str) -> None:
        if isinstance(text, Doubt):
            notes.append(Note(field="measured", who="--measure", why=str(text)))
        progress(text)

    measured = take_measurements(hardware, tell)
    return replace(hardware, measured=measured, notes=(*hardware.notes, *notes))


def take_measurements(hardware: Hardware, progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    """All measurements that can be taken here. What cannot be taken is reported through ``progress`` and left out."""
    measurements: list[Measurement] = []
    threads = hardware.cpu.budget or 1
    progress(f"host memory: copying on {threads} threads")
    measurements += measure_host_memory(threads, choose_copy_bytes(hardware), progress)
    for disk in hardware.disks:
        if disk.role == "work" and disk.path and disk.writable and (disk.free_bytes or 0) > 4 * FILE_BYTES:
            measurements += measure_disk(disk.role, Path(disk.path), progress)
    if hardware.software.torch is None:
        progress(Doubt("torch is not installed: no matmul and no device measurements"))
        return tuple(measurements)
    progress("matmul and copies through torch")
    return (*measurements, *measure_with_torch(threads, progress))


def measure_host_memory(threads: int, size: int, progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    """The rate of copies in host memory; nothing where others were busy all the time."""
    figure = take_rounds(lambda: {"copy": measure_host_copy(threads, size)}).judge("copy", "bytes/s")
    if figure.doubt:
        progress(Doubt(f"host_memory_bandwidth of the CPU {figure.doubt}"))
    if figure.value is None:
        return ()
    copied = Measurement(
        what="host_memory_bandwidth", where="cpu", value=figure.value, unit="bytes/s", spread=figure.spread
    )
    return (copied,)


def measure_disk(role: str, folder: Path, progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    """The rate of reads; nothing where others were busy, or no two reads agree."""
    progress(f"disk: reading {FILE_BYTES >> 20} MiB in {folder}")
    with watch_load() as load:
        rates = measure_disk_reads(folder)
    if not rates:
        return ()
    rate = confirm_rate(rates)
    doubt = load.describe() or (rate is None and "no second is near the fastest: busy, or shared with others")
    if rate is None or doubt:
        readings = f"{len(rates)} reads gave {min(rates):.3g} to {max(rates):.3g} bytes/s"
        progress(Doubt(f"disk_read is not used: {readings}; {doubt}; measure again"))
        return ()
    return (Measurement(what="disk_read", where=role, value=rate, unit="bytes/s"),)


def choose_copy_bytes(hardware: Hardware) -> int:
    """How much to copy so that it is memory and no cache that is timed, within what this machine can spare."""
    shared = [(c.size_bytes or 0) * (c.count or 1) for c in hardware.cpu.caches or () if c.level >= 3]
    memory = hardware.memory
    spare = min((n for n in (memory.available_bytes, memory.limit_bytes) if n), default=8 * COPY_BYTES)
    # STREAM: four times the last-level caches; capped, as the copies must not drive others into swap.
    return min(max(COPY_BYTES, 4 * sum(shared)), max(COPY_BYTES // 4, int(spare * MEMORY_SHARE)))


def measure_host_copy(threads: int, size: int = COPY_BYTES, seconds: float = COPY_SECONDS) -> float:
    """Bytes read and written per second by ``threads`` copies side by side (STREAM's copy: both directions count)."""
    share = max(1 << 20, size // threads)
    buffers = [(ctypes.create_string_buffer(share), ctypes.create_string_buffer(share)) for _ in range(threads)]
    rounds = [0] * threads
    barrier = threading.Barrier(threads + 1)
    stop = threading.Event()

    def copy(number: int) -> None:
        source, target = buffers[number]
        ctypes.memset(source, number + 1, share)  # untouched pages are all one zero page, which a cache holds
        ctypes.memmove(target, source, share)  # pages in both; ctypes lets other threads run meanwhile
        barrier.wait()
        while not stop.is_set():
            ctypes.memmove(target, source, share)
            rounds[number] += 1

    workers = [threading.Thread(target=copy, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    started = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return 2 * share * sum(rounds) / (time.perf_counter() - started)  # read once and written once


def measure_disk_reads(folder: Path, size: int = FILE_BYTES, seconds: float = READ_SECONDS) -> list[float]:
    """Sequential read rates of a file made for it, each out of the page cache: until two agree or the time is over. Empty where that
    cannot be done."""
    if not hasattr(os, "posix_fadvise"):  # macOS, Windows: the cache cannot be emptied, the number would be memory's
        return []
    block = os.urandom(BLOCK_BYTES)  # a file system that compresses would read zeros from nowhere
    rates: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(max(1, size // BLOCK_BYTES)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            ends = time.perf_counter() + seconds
            while not _are_enough(rates) and (len(rates) < 2 or time.perf_counter() < ends):
                rates.append(_read_once(file.fileno()))
    except OSError:
        return []
    return rates


def _read_once(descriptor: int) -> float:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    started = time.perf_counter()
    read = 0
    while chunk := os.read(descriptor, BLOCK_BYTES):
        read += len(chunk)
    return read / (time.perf_counter() - started)


def _are_enough(rates: Sequence[float]) -> bool:
    return len(rates) >= LEAST_READS and confirm_rate(rates) is not None


def confirm_rate(rates: Sequence[float]) -> float | None:
    """The fastest, where a second comes near it: what others do on a disk makes reads slower, never faster."""
    fastest = sorted(rates, reverse=True)[:2]
    return fastest[0] if len(fastest) == 2 and fastest[1] > fastest[0] * (1 - SAME_RATE) else None


def measure_with_torch(
    threads: int, progress: Callable[[str], None], seconds: float = TORCH_SECONDS
) -> tuple[Measurement, ...]:
    """The measurements of the child process; what it had sent before its time was over is kept."""
    command = build_own_command("hwdetect.measure.torch_child", str(threads))
    # Numbered as the accelerators of this reading are: by their place on the bus.
    environment = isolate_python() | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    lines = Lines()
    with Program(command, output=lines.add, environment=environment) as child:
        measurements = collect_measurements(lines.read(seconds), progress)
        code, problem = child.wait(2)  # its outputs are closed, or its time is over
    if problem:
        progress(Doubt(f"the torch part was not done after {seconds:g} s: what it sent is kept"))
    elif code:
        progress(Doubt(f"the torch part ended early (exit status {code}): what it sent is kept"))
    return measurements
