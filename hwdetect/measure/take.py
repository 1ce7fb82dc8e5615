"""What a data sheet cannot say, timed in seconds: host memory, disk, and through torch every device and pair.

Everything that needs torch runs in a child process with its own clock (``torch_child``), so that this process keeps
no device context and a hanging driver costs a known time.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from hwdetect.findings import GIB, list_accelerators_in_use
from hwdetect.machine.process import Lines, Program, build_own_command, isolate_python
from hwdetect.measure.load import watch_load
from hwdetect.measure.messages import Doubt, collect_measurements
from hwdetect.measure.rounds import PAUSE_SECONDS, Figure, Visit, join_visits, take_visit
from hwdetect.types import MEASURED_BY, NOT_USED, SAME_RATE, Hardware, Measurement, Note

COPY_BYTES = 256 << 20  # at least; and four times the last-level caches, as STREAM's rules want it
MEMORY_SHARE = 1 / 8  # of what is available: the most that the copies may take
COPY_SECONDS = 0.25
FILE_BYTES = 256 << 20
BLOCK_BYTES = 8 << 20
READ_SECONDS = 2.0
LEAST_READS = 8
"""of a disk that others use too: fewer have no undisturbed one among them"""
TORCH_SECONDS = 120.0
CPU_VISIT_SECONDS = 4.0
"""for the rounds of all products of a CPU"""
NEIGHBOURS = (
    "in a virtual machine: what its neighbours on the host take of memory, caches and disk is not seen from here, and may be another "
    "share the next time"
)


def measure_hardware(hardware: Hardware, progress: Callable[[str], None]) -> Hardware:
    """``hardware`` with what was measured, and a note for every figure that is missing or unsteady."""
    notes: list[Note] = []

    def tell(text: str) -> None:
        if isinstance(text, Doubt):
            notes.append(Note(field="measured", who=MEASURED_BY, why=str(text)))
        progress(text)

    measured = leave_out_used(hardware, take_measurements(hardware, tell), tell)
    if measured and hardware.software.is_virtual:
        tell(Doubt(NEIGHBOURS))
    return replace(hardware, measured=measured, notes=(*hardware.notes, *notes))


def leave_out_used(
    hardware: Hardware, measured: Sequence[Measurement], tell: Callable[[str], None]
) -> tuple[Measurement, ...]:
    """Without the figures of accelerators in which others have their data: the kernel counts what they compute on CPUs alone."""
    used = {accelerator.index: sizes for accelerator, *sizes in list_accelerators_in_use(hardware)}
    kept = [m for m in measured if not used.keys() & list_timed_accelerators(m)]
    for index, (total, free) in used.items():
        if any(index in list_timed_accelerators(m) for m in measured):
            busy = f"busy: others use {(total - free) / GIB:.1f} of {total / GIB:.1f} GiB"
            tell(Doubt(f"accelerator {index}{NOT_USED}{busy}; measure again"))
    return tuple(kept)


def list_timed_accelerators(measurement: Measurement) -> set[int]:
    """By number: one, the two of a copy, or all from the first to the last."""
    numbers = (
        list(map(int, re.findall(r"\d+", measurement.where))) if measurement.where.startswith("accelerator") else []
    )
    whole = measurement.what.startswith("all_reduce")
    return set(range(numbers[0], numbers[-1] + 1)) if whole and numbers else set(numbers)


def take_measurements(hardware: Hardware, progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    """All measurements that can be taken here. What cannot be taken is reported through ``progress`` and left out.

    Memory and disk are visited before, after and some seconds after what torch times, and that takes its own visits.
    """
    threads, size = hardware.cpu.budget or 1, choose_copy_bytes(hardware)
    disk = find_timed_disk(hardware)
    memory_visits: list[Visit] = []
    disk_visits: list[Visit] = []

    def visit(file: IO[bytes] | None) -> None:
        progress(f"host memory: copying on {threads} threads")
        memory_visits.append(take_visit(lambda: {"copy": measure_host_copy(threads, size)}))
        if file:
            progress(f"disk: reading {FILE_BYTES >> 20} MiB in {disk}")
            disk_visits.append(visit_disk(file))

    with open_timed_file(disk) as file:
        visit(file)
        by_torch = take_torch_part(hardware, threads, progress)
        visit(file)
        time.sleep(PAUSE_SECONDS)
        visit(file)
    return (
        *make_measurement("host_memory_bandwidth", "cpu", join_visits(memory_visits, "copy", "bytes/s"), progress),
        *(make_measurement("disk_read", "work", join_visits(disk_visits, "read", "bytes/s"), progress) if file else ()),
        *by_torch,
    )


def take_torch_part(hardware: Hardware, threads: int, progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    if hardware.software.torch is None:
        progress(Doubt("torch is not installed: no matmul and no device measurements"))
        time.sleep(PAUSE_SECONDS)
        return ()
    progress("matmul and copies through torch")
    return measure_with_torch(threads, progress)


def make_measurement(what: str, where: str, figure: Figure, progress: Callable[[str], None]) -> tuple[Measurement, ...]:
    """The figure in bytes per second, with what there is to tell of it; nothing where there is none."""
    if figure.doubt:
        progress(Doubt(f"{what} {'of the CPU ' if where == 'cpu' else ''}{figure.doubt}"))
    if figure.value is None:
        return ()
    return (Measurement(what=what, where=where, value=figure.value, unit="bytes/s", spread=figure.spread),)


def find_timed_disk(hardware: Hardware) -> Path | None:
    """The working folder, where a file for the reads can be made."""
    for disk in hardware.disks:
        if disk.role == "work" and disk.path and disk.writable and (disk.free_bytes or 0) > 4 * FILE_BYTES:
            return Path(disk.path)
    return None


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


@contextmanager
def open_timed_file(folder: Path | None, size: int = FILE_BYTES) -> Generator[IO[bytes] | None]:
    """A file without a name that is read out of the page cache, gone with the block. ``None`` where that cannot be had."""
    if folder is None or not hasattr(os, "posix_fadvise"):  # macOS, Windows: the cache cannot be emptied
        yield None
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            block = os.urandom(BLOCK_BYTES)  # a file system that compresses would read zeros from nowhere
            for _ in range(max(1, size // BLOCK_BYTES)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file = None
        yield file


def visit_disk(file: IO[bytes], seconds: float = READ_SECONDS) -> Visit:
    """Sequential reads until two agree with the fastest or the time is over; that fastest is the visit's rate."""
    rates: list[float] = []
    ends = time.perf_counter() + seconds
    with watch_load() as load:
        while not _are_enough(rates) and (len(rates) < 2 or time.perf_counter() < ends):
            try:
                rates.append(_read_once(file.fileno()))
            except OSError as error:
                return Visit(busy=f"the disk answered {error.strerror or error}")
    rate, busy = confirm_rate(rates), load.describe()
    if rate is None or busy:
        readings = f"{len(rates)} reads gave {min(rates):.3g} to {max(rates):.3g} bytes/s"
        return Visit(busy=f"{readings}; {busy or 'no second is near the fastest: busy, or shared with others'}")
    return Visit(rates={"read": [rate]})


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
    threads: int,
    progress: Callable[[str], None],
    seconds: float = TORCH_SECONDS,
    visit_seconds: float = CPU_VISIT_SECONDS,
) -> tuple[Measurement, ...]:
    """The measurements of the child process; what it had sent before its time was over is kept."""
    command = build_own_command("hwdetect.measure.torch_child", str(threads), str(visit_seconds))
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
