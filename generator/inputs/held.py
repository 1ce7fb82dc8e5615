"""Folders and files that a running perfgen holds: what nobody holds was left by one that was killed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from generator.errors import DestinationError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FRESH_S = 60.0
"""what is younger may belong to somebody who has just made it and does not hold it yet"""
DAY_S = 86_400.0
LEAST_ROOM_BYTES = 1 << 20
"""a disk with less is full: a rendered project and its templates take three times as much"""
SCRATCH = re.compile(r"perfgen-([0-9]+)-[a-z0-9_]{8}", re.ASCII)


@contextmanager
def hold_folder(path: Path) -> Generator[None]:
    """Hold a folder of ours; the kernel lets go when we end, however we end, and a rename changes nothing.

    Where the file system has no locks, its name (with our pid) has to do: see ``is_abandoned``.
    """
    handle = open_folder(path)
    try:
        lock_handle(handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def open_folder(path: Path) -> int | None:
    """A handle of a folder, not of what a link leads to; ``None`` where folders have none (Windows)."""
    if fcntl is None:
        return None
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def lock_handle(handle: int | None) -> bool | None:
    """Whether it is ours now; ``None`` where that cannot be had (flock(2): ENOLCK, EBADF on NFS)."""
    if handle is None or fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def open_lock(path: Path, target: Path) -> int:
    """The handle of the lock file of ``target``, held and with our pid in it.

    Raises ``DestinationError`` where another holds it, ``OSError``. Where the file system has no locks, nobody is kept out.
    """
    while True:
        handle = open_lock_file(path)
        try:
            if lock_handle(handle) is False:
                raise DestinationError(
                    f"{target} is being written by another perfgen ({name_holder(handle)})",
                    "wait until it has ended, or choose another folder",
                )
            if is_same_file(handle, path):
                with suppress(OSError):  # another user's, whose process was killed
                    os.truncate(handle, 0)
                    os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder ended and removed it since we opened it


def open_lock_file(path: Path) -> int:
    """Not through a link, nor waiting for a pipe: in a folder of many, others could put one there."""
    flags = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, os.O_RDWR | flags, 0o644)
    except PermissionError as denied:
        try:
            return os.open(path, os.O_RDONLY | flags & ~os.O_CREAT)
        except FileNotFoundError:
            raise denied from None


def name_holder(handle: int) -> str:
    """The process that holds the lock, by the file's text, which it writes just after it has taken it."""
    for _ in range(20):
        if pid := re.match(rb"[0-9]+", os.read(handle, 20)):
            return f"process {int(pid[0])}"
        time.sleep(0.01)
        os.lseek(handle, 0, os.SEEK_SET)
    return "its process is unknown"


def is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def is_abandoned(path: Path, pid: int) -> bool:
    """Whether a folder that process ``pid`` of ours made, by its name, was left behind. Links and others' are not ours."""
    try:
        handle = open_folder(path)
    except OSError:
        return False
    try:
        status = path.lstat() if handle is None else os.fstat(handle)
        if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
            return False
        free, age_s = lock_handle(handle), time.time() - status.st_ctime
        if free is None:  # the pid may be of another machine that shares the disk
            return not is_alive(pid) and age_s > DAY_S
        # Pids are used again, and another container has its own: a lock that is free says more than the number.
        return free and (pid == os.getpid() or not is_alive(pid) or age_s > FRESH_S)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def make_scratch() -> Generator[Path]:
    """An empty folder among the temporary ones, readable by us alone, gone afterwards. What killed ones left goes too.

    Raises ``DestinationError`` where there can be none, as in a container that may only read, and where it is full.
    """
    try:
        sweep_scratch(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=f"perfgen-{os.getpid()}-"))
    except OSError as error:
        raise DestinationError(
            f"no folder takes temporary files: {error.strerror}", "set TMPDIR to one that does"
        ) from error
    try:
        with hold_folder(folder):
            yield folder
    except OSError as error:  # of a copied tree it has no number
        if shutil.disk_usage(folder).free >= LEAST_ROOM_BYTES:
            raise
        raise DestinationError(
            f"{folder.parent}, where temporary files go, is full",
            "free some room there, or set TMPDIR to another folder",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def use_temporary_folder(folder: Path) -> Generator[None]:
    """A new folder in which a library puts its temporary files: they go with it when we are killed meanwhile."""
    folder.mkdir()
    usual, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = usual


def sweep_scratch(folder: Path) -> None:
    """Remove our scratch folders in ``folder`` that nobody holds."""
    with suppress(OSError):
        for left in list(folder.iterdir()):
            name = SCRATCH.fullmatch(left.name)
            if name and is_abandoned(left, int(name[1])):
                shutil.rmtree(left, ignore_errors=True)
