"""Putting a finished tree in place: the old folder or the new one, never a mix."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from generator.errors import DestinationError
from generator.inputs.held import hold_folder, is_abandoned, open_lock

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
RESERVED = {"con", "prn", "aux", "nul", *(f"com{i}" for i in range(10)), *(f"lpt{i}" for i in range(10))}
WRITE_FAILURES = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,  # ulimit -f
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EIO,
    errno.EBUSY,  # the folder is a mount point
    errno.EXDEV,
    errno.ENOTEMPTY,  # somebody else wrote there meanwhile
}
MARK = ".copier-answers.yml"
"""Every generated project holds it."""


def resolve_destination(dest: Path, overwrite: bool) -> Path:
    """``dest`` resolved, after every rule: a plain name, and absent, empty, or (with ``overwrite``) a generated project.

    Raises ``DestinationError``.
    """
    # Path has made one / of two; the second is what scp and rsync take
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/|[^/]+@[^/]+:", str(dest)):
        raise DestinationError(
            "DEST is an address, and a project is written to a folder", "give the name of a new folder"
        )
    try:
        target = dest.resolve()
        str(target).encode()  # bytes that are no text: ValueError
        here = not target.name or target == Path.cwd()
    except (ValueError, RuntimeError, OSError) as error:
        raise DestinationError(f"{str(dest)!r} is no usable path: {error}", "give a plain folder name") from error
    if here:
        raise DestinationError(f"{dest} is the current or the root folder", "give the name of a new folder")
    if not NAME.fullmatch(target.name) or target.name.endswith(".") or target.stem.lower() in RESERVED:
        raise DestinationError(
            f"{target.name!r} cannot be a project's name",
            "use up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        )
    try:
        ancestor = next(parent for parent in target.parents if parent.exists())
        if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
            raise DestinationError(f"{ancestor} is no folder that you may write to", "choose another folder")
        check_occupied(target, overwrite)
    except OSError as error:
        raise DestinationError(f"{target}: {error.strerror}", "choose another folder") from error
    return target


def is_occupied(target: Path) -> bool:
    """Whether something would be replaced there."""
    return target.exists() and any(target.iterdir())


def check_occupied(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise DestinationError(f"{target} is a file", "choose another folder")
    if not any(target.iterdir()):
        return
    if not (target / MARK).is_file():
        raise DestinationError(f"{target} is not empty and no perfgen project", "choose an empty or new folder")
    if not overwrite:
        raise DestinationError(
            f"{target} already holds a project",
            "`perfgen update` merges with your edits; --diff shows what would change, --overwrite replaces it and keeps the old "
            "folder beside it",
        )


@contextmanager
def lock_destination(target: Path) -> Generator[None]:
    """Nobody else writes to ``target`` meanwhile, neither `init` nor `update`. Raises ``DestinationError`` naming the process that does.

    The lock is a file beside it, for a project may be replaced as a whole; it goes with the parents that were made for it. A killed
    holder's is taken over. Where the file system has no locks there is none, and landing in one step has to do.
    """
    new_parents = [parent for parent in target.parents if not parent.exists()]
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = open_lock(name_lock(target), target)
        except OSError as error:
            raise DestinationError(
                f"cannot write beside {target}: {error.strerror}", "choose a folder you may write to"
            ) from error
        try:
            yield
        finally:
            with suppress(OSError):
                name_lock(target).unlink()  # while it is held: whoever waits for it looks again
            os.close(handle)
    finally:
        remove_empty(new_parents)


def name_lock(target: Path) -> Path:
    return target.with_name(f".{target.name}.perfgen-lock")


@contextmanager
def make_staging(target: Path) -> Generator[Path]:
    """An empty folder beside ``target``; gone afterwards, whatever happens, and with it the parents that were made for it.

    Also removes what a killed run left.
    """
    new_parents = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_leftovers(target)
        stage = target.parent / f".{target.name}.perfgen-{os.getpid()}"
        stage.mkdir()
    except OSError as error:
        remove_empty(new_parents)
        raise DestinationError(
            f"cannot write beside {target}: {error.strerror}", "choose a folder you may write to"
        ) from error
    try:
        with hold_folder(stage):
            yield stage
    except OSError as error:
        if error.errno in WRITE_FAILURES:
            why = f"{target}: {error.strerror}; nothing was written there"
            raise DestinationError(why, "free some room, or choose another folder") from error
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        remove_empty(new_parents)


def remove_empty(folders: list[Path]) -> None:
    """Those that hold something stay: the project landed in them."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def sweep_leftovers(target: Path) -> None:
    """Remove staging folders of this target that nobody holds any more."""
    for left in target.parent.iterdir():
        name = re.fullmatch(re.escape(f".{target.name}.perfgen-") + "([0-9]+)", left.name, re.ASCII)
        if name and is_abandoned(left, int(name[1])):
            shutil.rmtree(left, ignore_errors=True)


def land_tree(stage: Path, target: Path, overwrite: bool = True) -> Path | None:
    """Move the finished tree to ``target`` in one step; the backup of what was there, if anything was.

    Raises ``DestinationError`` where something is there and is not to be replaced: another one may have been quicker.
    """
    flush_tree(stage)
    if not overwrite:
        check_occupied(target, overwrite)
        stage.rename(target)  # onto nothing or an empty folder, else an error
        return None
    if not is_occupied(target):
        stage.rename(target)  # onto nothing or an empty folder: atomic
        return None
    backup = move_to_free_name(stage, target)  # the name that the old tree will have: the swap puts it there at once
    if swap_folders(backup, target):
        return backup
    backup.rename(stage)
    backup = move_to_free_name(target, target)
    try:
        stage.rename(target)
    except OSError as error:
        why = f"{target}: {error.strerror}; the old folder is now {backup}"
        raise DestinationError(why, "rename it back, or choose another folder") from error
    return backup


def move_to_free_name(tree: Path, target: Path) -> Path:
    """``tree`` under the first free ``TARGET.old-N``. A folder never replaces anything but an empty folder: rename(2)."""
    for number in range(1, 10_000):
        backup = target.with_name(f"{target.name}.old-{number}")
        if os.path.lexists(backup):
            continue
        try:
            tree.rename(backup)
        except OSError:
            if os.path.lexists(backup):  # somebody else took the name meanwhile
                continue
            raise
        return backup
    raise DestinationError(f"{target} has 9,999 backups beside it", "remove some")


def flush_tree(tree: Path) -> None:
    """Everything on disk before the rename makes it visible."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            sync_to_disk(path)


def sync_to_disk(path: Path) -> None:
    """A file's content, a folder's names. Windows, and some shared file systems (EINVAL), have no such call for folders."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def swap_folders(a: Path, b: Path) -> bool:
    """Swap two folders atomically (Linux renameat2); False where that cannot be had."""
    if sys.platform != "linux":
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE: linux/fs.h
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    return libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), swap) == 0
