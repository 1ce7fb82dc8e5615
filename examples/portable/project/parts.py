"""Rows and tokens, prepared part by part in several processes. Each part is kept as soon as it is done.

A run that is killed loses the parts that were being written, and the next one makes only those. All of them lie in the
cache of `datasets`, under a key of what they are made of.
"""

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from datasets import Dataset, concatenate_datasets, config
from datasets.utils import tqdm

PART_BYTES = 2 << 20
"""A second of a core, or a few: what a kill loses, and less than that is not worth a process."""
MOST_PARTS = 256
"""Each is an open file while its rows are read, and 1024 are allowed on most systems."""
BATCH = 1000
"""Rows that are in memory at once, in each process."""
END = b"\xff\xff\xff\xff" + bytes(4)
"""Of a stream of Arrow. Without it a file is not all that was written, after a power cut or on a failing disk: read as
it is, it would be an error that names no file, or fewer rows without a word."""
DEAD_SECONDS = 3600
"""A draft that nothing was written to for so long is of a process that was killed."""

Batches = Generator[pa.RecordBatch, None, int | None]
"""Of one part; what it returns at the end is the number of rows that it left out."""


def cut_rows(dataset: Dataset, unit: int = 1) -> tuple[list[range], list[int]]:
    """Rows of each part, in order, a multiple of ``unit`` in all but the last; and their bytes."""
    rows, row_bytes = len(dataset), dataset.data.nbytes / max(1, dataset.data.num_rows)  # rows may be picked of a table
    count = min(MOST_PARTS, max(1, int(row_bytes * rows) // PART_BYTES))
    size = max(1, -(-rows // count // unit)) * unit
    parts = [range(start, min(start + size, rows)) for start in range(0, max(1, rows), size)]
    return parts, [int(row_bytes * len(part)) for part in parts]


def group_pieces(pieces: Sequence, sizes: Sequence[int]) -> tuple[list[list], list[int]]:
    """Neighbours that make a part together, where there are more than parts may be; and the bytes of each part."""
    least = max(PART_BYTES, -(-sum(sizes) // MOST_PARTS))
    parts: list[list] = [[]]
    filled = [0]
    for piece, size in zip(pieces, sizes, strict=True):
        if filled[-1] >= least:
            parts.append([])
            filled.append(0)
        parts[-1].append(piece)
        filled[-1] += size
    return parts, filled


def load_parts(files: Sequence[Path]) -> Dataset:
    """Their rows, which stay on disk."""
    return concatenate_datasets([Dataset.from_file(str(file)) for file in files])


def prepare_parts(
    parts: Sequence, sizes: Sequence[int], work: Callable[..., Batches], schema: pa.Schema, key: str, title: str
) -> tuple[list[Path], int]:
    """A file of the batches that ``work`` makes of each part, in order; and how many rows are left out of them.

    ``sizes`` in bytes. Where ``work`` ends the process, that of the first such part is the reason that is given.
    """
    folder = Path(config.HF_DATASETS_CACHE) / "prepared" / key
    make_folder(folder)
    files = [folder / f"{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    missing = [number for number, file in enumerate(files) if not is_whole(file)]

    def write(number: int) -> None:
        write_part(files[number], work(parts[number]), schema)

    if missing:
        done = sum(sizes) - sum(sizes[number] for number in missing)
        processes = min(len(missing), count_cores())
        with tqdm(total=sum(sizes), initial=done, desc=title, unit="B", unit_scale=True) as bar:
            for number in write_in_processes(write, missing, processes, title):
                bar.update(sizes[number])
    return files, sum(map(read_left_out, files))


def is_whole(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            stream.seek(-len(END), os.SEEK_END)
            return stream.read() == END and name_hash(file).is_file()
    except OSError:  # not there, or shorter than its end
        return False


def hash_every_row(dataset: Dataset) -> str:
    """Of all that was read, whichever of it ``dataset`` still has. Each part was hashed as it was written."""
    files = [name_hash(Path(row["filename"])) for row in dataset.cache_files]
    hashes = [file.read_text(encoding="utf-8") for file in files if file.is_file()]  # a shuffled order has none
    return f"sha256 {hashlib.sha256(''.join(hashes).encode()).hexdigest()[:16]}"


def make_folder(folder: Path) -> None:
    """Without what processes that were killed have left in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob("*.tmp"):
            with suppress(FileNotFoundError):  # of a run beside, which is done with it
                if draft.stat().st_mtime < time.time() - DEAD_SECONDS:
                    draft.unlink()
    except OSError as error:
        end_unwritable(folder, error)


def end_unwritable(folder: Path, error: OSError) -> NoReturn:
    sys.exit(
        f"{error}. Prepared data are kept in {folder}: make room there, or name another folder (HF_HOME, as in "
        ".env.example). What is done is not made again."
    )


def count_cores(root: Path = Path("/")) -> int:
    """Those that this process may use: a container may have the time of four of the sixty-four that it sees."""
    if sys.platform == "darwin":  # no fork survives its frameworks' threads: the tokenizer's are used
        return 1
    seen = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, int(min([seen, *list_cpu_quotas(root)])))


def list_cpu_quotas(root: Path) -> list[float]:
    """Cores' worth of time that the control groups of this process allow, its own and all above."""
    groups = root / "proc/self/cgroup"
    quotas = []
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.exists() else []:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")  # v1, v2
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        # a container sees its own group at the top, whatever the group's name: what is not there is passed over
        inside = [part for part in group.split("/") if part and part != ".."]
        for depth in range(len(inside) + 1):
            files = [top.joinpath(*inside[:depth], name) for name in names]
            if all(file.exists() for file in files):
                quota, period = " ".join(file.read_text(encoding="utf-8") for file in files).split()
                if quota.isdecimal():  # or "max", "-1"
                    quotas.append(int(quota) / int(period))
    return quotas


def write_part(file: Path, batches: Batches, schema: pa.Schema) -> None:
    """A file that is there once it is complete, and beside it, where rows are left out, how many."""
    draft = file.with_suffix(f".{uuid.uuid4().hex}.tmp")  # containers that share a cache have processes of one number
    try:
        value = hashlib.sha256()
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:

            def write_batch(batch: pa.RecordBatch) -> None:
                for column in batch.columns:
                    add_to_hash(value, column)
                writer.write_batch(batch)

            left_out = yield_to(write_batch, batches)
        if left_out:
            name_left_out(file).write_text(str(left_out), encoding="utf-8")
        name_hash(file).write_text(value.hexdigest(), encoding="utf-8")
        if not is_whole(file):  # made by another run beside: what is made of it is kept under its time of writing
            draft.replace(file)
    except OSError as error:
        end_unwritable(file.parent, error)
    finally:
        draft.unlink(missing_ok=True)


def add_to_hash(value, array: pa.Array) -> None:
    """What it holds, and not how a version of Arrow writes that to a file. A column, or a field of it, that no row has
    adds nothing: a later version of this project may have more of them, and goes on with the runs of this one."""
    if array.null_count == len(array):
        return
    is_struct, is_list = pa.types.is_struct(array.type), pa.types.is_list(array.type)
    own = 1 if is_struct else 2 if is_list else 3  # buffers; those of what is nested follow
    for buffer in array.buffers()[:own]:
        value.update(b"none" if buffer is None else buffer)
    fields = array.type.num_fields if is_struct else 0
    for child in [array.values] if is_list else [array.field(number) for number in range(fields)]:
        add_to_hash(value, child)


def name_left_out(file: Path) -> Path:
    return file.with_suffix(".left-out")


def name_hash(file: Path) -> Path:
    return file.with_suffix(".sha256")


def read_left_out(file: Path) -> int:
    """How many rows ``write_part`` has left out of a file."""
    count = name_left_out(file)
    return int(count.read_text(encoding="utf-8")) if count.exists() else 0


def yield_to(take: Callable, batches: Batches) -> int:
    """What the generator returns once ``take`` has all that it yields."""
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            return end.value or 0
        take(batch)


def write_in_processes(write: Callable, missing: list[int], count: int, title: str) -> Iterator[int]:
    """The numbers of the parts as they are done.

    Processes take parts in order. Where one fails, those before it are ended first: its reason is that of the first.
    """
    if count == 1:  # the tokenizer has threads of its own
        for number in missing:
            write(number)
            yield number
        return
    fork = multiprocessing.get_context("fork")  # with the tokenizer and the rows as they are here, nothing is imported
    taken = fork.Value("q", 0)
    processes, reasons, crash = {}, {}, None
    for _ in range(count):
        reader, writer = fork.Pipe(duplex=False)
        arguments = write, missing, taken, writer
        processes[reader] = fork.Process(target=write_next_parts, args=arguments, daemon=True)
        processes[reader].start()
        writer.close()  # what is read ends with the process
    while processes:
        ready = wait(list(processes))
        for reader in [reader for reader in processes if reader in ready]:
            try:
                number, reason = reader.recv()
            except EOFError:
                process = processes.pop(reader)
                process.join()
                crash = crash or process.exitcode
                continue
            if reason is None:
                yield number
            else:
                reasons[number] = reason
        if reasons or crash:
            taken.value = len(missing)  # no further part is begun
    if reasons:
        sys.exit(reasons[min(reasons)])
    if crash:
        cause = " (out of memory?)" if crash == -signal.SIGKILL else ""
        sys.exit(f"{title}: a process ended with {crash}{cause}. Parts that are done are kept for the next run.")


def write_next_parts(write: Callable, missing: list[int], taken, writer: Connection) -> None:
    """What each of the processes does, until nothing is left."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    while True:
        with taken.get_lock():
            place = taken.value
            taken.value += 1
        if place >= len(missing):
            return
        try:
            write(missing[place])
            writer.send((missing[place], None))
        except SystemExit as end:
            writer.send((missing[place], str(end.code)))


def end_with_parent() -> None:
    """A kill of the run ends its processes too, in the middle of a part: the next may wait for their memory."""
    parent = multiprocessing.parent_process()
    assert parent, "called in a child"
    wait([parent.sentinel])
    os._exit(1)
