"""Changing files of a project that is in use: each is the old one or the new one at every moment, and a kill loses none.

Everything is written beside the project's files first, in .perfgen: the new contents (``staged``), copies of the old ones
(``backup-N``), then the journal, by one rename. From there on the update is finished by whoever comes next: ``finish_landing``
moves what is still staged. Runs and environments, however large, are not copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from generator.emit.emitted import BESIDE, FILE, FOLDER, IGNORED, check_name
from generator.emit.outcomes import NEW, Outcome, read_standing
from generator.emit.place import WRITE_FAILURES, lock_destination, sync_to_disk
from generator.emit.sources import set_link
from generator.errors import DestinationError
from generator.inputs.held import open_lock
from generator.inputs.json_files import load_json

STAGED, JOURNAL, LOCK, BACKUP = "staged", "journal.json", "lock", "backup"


@dataclass(frozen=True, slots=True)
class Step:
    """One file: digests of what stood there when it was decided and of what will (``None``: nothing)."""

    name: str
    before: str | None
    after: str | None


def digest(path: Path) -> str | None:
    """Of a regular file; ``None`` where nothing is. Raises ``DestinationError`` for anything else."""
    if not os.path.lexists(path):
        return None
    if path.is_symlink() or not path.is_file():
        raise DestinationError(f"{path} is no regular file", "move it away")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def lock_project(folder: Path) -> Generator[None]:
    """Nobody else writes to the project meanwhile. Raises ``DestinationError`` naming the process that does.

    It takes `init`'s lock first, beside the folder, and then one in it. Where nobody may write beside the folder nobody can replace
    it, and the second keeps other updates out.
    """
    beside = lock_destination(folder) if os.access(folder.parent, os.W_OK | os.X_OK) else nullcontext()
    with beside:
        handle = open_control(folder)
        try:
            yield
        except OSError as error:
            if error.errno not in WRITE_FAILURES:
                raise
            again = "run `perfgen update` again: it goes on where this one ended"
            hint = again if is_interrupted(folder) else "nothing was changed"
            raise DestinationError(f"{error.filename or folder}: {error.strerror}", hint) from error
        finally:
            os.close(handle)


def open_control(folder: Path) -> int:
    """The handle of the lock in the project's .perfgen, which is made if there is none. Raises ``DestinationError``."""
    control = folder / FOLDER
    try:
        if control.is_symlink() or (control.exists() and not control.is_dir()):
            raise DestinationError(f"{control} is no folder", "move it away")
        if not control.exists():
            control.mkdir(exist_ok=True)
            (folder / IGNORED).write_bytes(BESIDE[IGNORED])  # git need not see the lock
        return open_lock(control / LOCK, folder)
    except OSError as error:
        raise DestinationError(f"cannot write in {folder}: {error.strerror}", "nothing was changed") from error


def list_writes(outcomes: tuple[Outcome, ...]) -> dict[str, tuple[bytes, bool]]:
    """Content and mode of every file that is written, by its name."""
    writes = {o.name: (o.content, o.executable) for o in outcomes if o.content is not None}
    return writes | {o.beside[0]: (o.beside[1], False) for o in outcomes if o.beside}


def list_removals(outcomes: tuple[Outcome, ...]) -> list[str]:
    return [o.name for o in outcomes if o.kind is o.kind.REMOVED]


def land_files(
    folder: Path,
    writes: Mapping[str, tuple[bytes, bool]],
    removals: list[str],
    links: Mapping[str, str | None] | None = None,
) -> Path | None:
    """Write and remove files of ``folder``, of which the lock is held; where copies of the old ones are, if there were any.

    ``links``: where each leads from now on, ``None`` for one that goes; what stands there and is no link stays.
    """
    control = folder / FOLDER
    clear_staging(control)
    names = [*writes, *removals]
    for name in names:
        if obstacle := read_standing(folder, name).obstacle:
            raise DestinationError(f"{folder / name} cannot be written: {obstacle}", "move it away")
    befores = {name: digest(folder / name) for name in names}
    backup = control / name_backup(control)
    try:
        kept = stage_files(folder, backup, writes, removals, befores, links or {})
    except BaseException:  # a full disk, Ctrl-C: what was laid down takes room
        if not is_interrupted(folder):
            remove_tree(backup)
            clear_staging(control)
        raise
    finish_landing(folder)
    return backup if kept else None


def stage_files(
    folder: Path,
    backup: Path,
    writes: Mapping[str, tuple[bytes, bool]],
    removals: list[str],
    befores: Mapping[str, str | None],
    links: Mapping[str, str | None],
) -> bool:
    """Copies of the old files, the new ones, and the journal: from then on the update is finished. Whether there were old ones."""
    control = folder / FOLDER
    kept = [name for name in befores if befores[name] is not None]
    for name in kept:
        (backup / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, backup / name)
    steps = [Step(name, befores[name], None) for name in removals]
    for number, (name, (content, executable)) in enumerate(writes.items()):
        staged = control / STAGED / str(number)
        write_staged(staged, content, executable, folder / name if befores[name] else None)
        steps.append(Step(name, befores[name], hashlib.sha256(content).hexdigest()))
    journal = {
        "schema": 1,
        "backup": backup.name if kept else None,
        "staged": {name: str(number) for number, name in enumerate(writes)},
        "steps": [[step.name, step.before, step.after] for step in steps],
        "links": dict(links),
    }
    write_durably(control / f"{JOURNAL}.new", json.dumps(journal, indent=1).encode())
    sync_folders(control, control / STAGED, *(path for path in backup.rglob("*") if path.is_dir()))
    (control / f"{JOURNAL}.new").replace(control / JOURNAL)
    return bool(kept)


def name_backup(control: Path) -> str:
    numbers = [int(m[1]) for path in control.iterdir() if (m := re.fullmatch(rf"{BACKUP}-([0-9]{{1,9}})", path.name))]
    return f"{BACKUP}-{max(numbers, default=0) + 1}"


def write_staged(path: Path, content: bytes, executable: bool, like: Path | None) -> None:
    """With the mode of the file that it replaces, but for the right to execute it."""
    path.parent.mkdir(exist_ok=True)
    write_durably(path, content)
    mode = (like or path).stat().st_mode & 0o777
    readers = (mode & 0o444) >> 2
    path.chmod(mode | readers if executable else mode & ~0o111)


def write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folders(*folders: Path) -> None:
    """Names on disk too."""
    for folder in folders:
        if folder.is_dir():
            sync_to_disk(folder)


def is_interrupted(folder: Path) -> bool:
    """Whether an update was ended while it moved files. What is no file there is none of ours, and is refused when it is read."""
    return os.path.lexists(folder / FOLDER / JOURNAL)


def finish_landing(folder: Path) -> tuple[str, ...]:
    """Move what a journal says and is still staged; the names of files that somebody changed since, which stay as they are.

    Every step may be repeated: a file is the old one, or the new one already, or a third one, beside which the new one is laid.
    """
    control = folder / FOLDER
    if not is_interrupted(folder):
        clear_staging(control)
        return ()
    if (control / STAGED).is_symlink():  # a stranger's: files would be taken from where it leads
        raise DestinationError(f"{control / STAGED} is a link, and no update makes one", "remove it")
    journal, changed = read_journal(control), []
    for step in journal["steps"]:
        path = folder / step.name
        now = "an obstacle" if read_standing(folder, step.name).obstacle else digest(path)
        if now == step.after:
            continue
        if now != step.before:
            changed.append(step.name)
            path = folder / (step.name.replace("/", "-") + NEW)
        if step.after is None:
            if now == step.before:
                path.unlink()
                remove_empty_parents(path, folder)
            continue
        staged = control / STAGED / journal["staged"][step.name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if staged.exists():
            staged.replace(path)
    for name, leads_to in journal["links"].items():
        set_link(folder, name, leads_to)
    sync_folders(*{(folder / name).parent for name in (*(step.name for step in journal["steps"]), *journal["links"])})
    (control / JOURNAL).unlink()
    clear_staging(control, keep=journal["backup"])
    return tuple(changed)


def read_journal(control: Path) -> dict:
    """Raises ``DestinationError`` where it is not what ``land_files`` wrote: it may come with a stranger's project."""
    path = control / JOURNAL
    try:
        journal = load_json(path)
        if not isinstance(journal, dict):
            raise ValueError("it holds no object")
        steps = [Step(*step) for step in journal["steps"]]
        for step in steps:
            if step.name.split("/")[0] != FOLDER:
                check_name(step.name)
            elif step.name not in (FILE, *BESIDE):
                raise ValueError(f"no update writes {step.name!r}")
            if step.after is not None and not re.fullmatch("[0-9]+", journal["staged"][step.name]):
                raise ValueError(f"no update stages {journal['staged'][step.name]!r}")
        for name, leads_to in journal["links"].items():
            check_link(name, leads_to)
        if journal["backup"] is not None and not re.fullmatch(rf"{BACKUP}-[0-9]+", journal["backup"]):
            raise ValueError(f"no backup is {journal['backup']!r}")
        return journal | {"steps": steps}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DestinationError(
            f"{path} is damaged: {error}", f"an update was broken off: what was there is in {control}/{BACKUP}-*"
        ) from error


def check_link(name: str, leads_to: str | None) -> None:
    """Raises ``ValueError`` for one that no update makes. Data may be called what no file of a template is."""
    if not re.fullmatch(r"[a-z_]+/([^/\0]+/)?[^/\0]+", name) or ".." in name.split("/"):
        raise ValueError(f"no update makes a link {name!r}")
    if not isinstance(leads_to, str | None):
        raise ValueError(f"no link leads to {leads_to!r}")


def remove_empty_parents(path: Path, folder: Path) -> None:
    with suppress(OSError):
        for parent in path.parents:
            if parent == folder:
                return
            parent.rmdir()


def clear_staging(control: Path, keep: str | None = None) -> None:
    """Remove what was staged, and the backups but the last that is complete: ``keep``, else what stands there."""
    remove_tree(control / STAGED)
    remove_tree(control / f"{JOURNAL}.new")
    if keep is None:
        return
    for path in control.glob(f"{BACKUP}-*"):
        if path.name != keep:
            remove_tree(path)


def remove_tree(path: Path) -> None:
    """Whatever a stranger put there: through a link what is staged would be written where it leads, and rmtree waits for a pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
