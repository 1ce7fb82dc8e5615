"""The folder of a run: one process at a time writes there, and nothing that others put there is removed."""

import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from finished_runs import TRIAL
from seals import SEAL, UNSEALED, read_seal

LOCK = "_train.lock"
"""As all that begins with _, it stays here when Trainer uploads the folder."""
OWN = (LOCK, "run.json", "checkpoint-*")
"""What a folder of a run has from its beginning, also of an earlier version."""
REPLACED = ("README.md", "config.json", "adapter_config.json", "*model*.safetensors*", "tokenizer.json")
"""Of what a finished run has, what other folders have too."""
ASIDE = "_set-aside"
"""A folder in that of the run: checkpoints that are not resumed, for their owner to look at."""
REMOVED = "_removed-"
"""Before the name of a checkpoint that is being removed: what a kill leaves of it goes at the next start."""
HELD: dict[Path, int] = {}
"""Descriptors of the locks of this process, by folder."""
STAYING: set[Path] = set()
"""Old checkpoints that cannot be removed: somebody else's, or held by a snapshot."""


def claim_folder(folder: Path, model: Path | str) -> None:
    """Make the folder, see that it takes files, and keep other runs out. Ends the process where that cannot be.

    ``model`` is what training begins with, which the trained one must not replace.
    """
    refuse_other_folders(folder, model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0")
            probe.flush()
    except OSError as error:
        advice = "free some space" if is_full(error) else "see who owns it"
        sys.exit(f"{folder} takes no files ({error.strerror}): {advice}, or take another --output_dir.")
    lock_folder(folder)
    for rest in folder.glob(f"{REMOVED}checkpoint-*"):
        shutil.rmtree(rest, ignore_errors=True)


def refuse_other_folders(folder: Path, model: Path | str) -> None:
    """The end of a run replaces README.md, config.json and all weights, whether they are a project's or a model's."""
    advice = "Take another --output_dir."
    begun = model.is_dir() if isinstance(model, Path) else False
    if begun and folder.exists() and folder.samefile(model):
        sys.exit(f"{folder} holds the model that training begins with, and would hold the trained one. {advice}")
    if any(next(folder.glob(name), None) for name in OWN):
        return
    taken = sorted(path.name for name in REPLACED for path in folder.glob(name))
    if taken:
        sys.exit(f"{folder} is no folder of a run, and its {', '.join(taken[:5])} would be replaced. {advice}")


def lock_folder(folder: Path) -> None:
    """Two at once would overwrite each other's files. The lock is this process's, and goes with it however it ends."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        sys.exit(f"{folder}: another process is at work there. Wait for it, or name another folder.")
    except OSError as error:  # some shared file systems have no locks
        print(f"{folder} cannot be locked ({error.strerror}): see that no other run writes there")
        os.close(descriptor)
        return
    HELD[folder.resolve()] = descriptor


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """Those with a step for a name, by step, the earliest first."""
    named = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-(0|[1-9][0-9]*)", path.name)]
    return dict(sorted((int(path.name.removeprefix("checkpoint-")), path) for path in named))


def put_away(checkpoint: Path, problem: str) -> None:
    """Out of the way of what will be saved. The rest of a save of this project is removed, everything else is kept."""
    folder = checkpoint.parent
    begun = (checkpoint / UNSEALED).is_file() and not (checkpoint / SEAL).exists()
    own = checkpoint.is_dir() and not checkpoint.is_symlink() and (begun or is_empty(checkpoint))
    if own and folder.resolve() in HELD:
        remove_checkpoint(checkpoint)
        print(f"{checkpoint} was begun when a run was ended: removed")
        return
    aside = folder / ASIDE
    aside.mkdir(exist_ok=True)
    target, number = aside / checkpoint.name, 1
    while os.path.lexists(target):
        number += 1
        target = aside / f"{checkpoint.name}-{number}"
    checkpoint.rename(target)
    print(f"{checkpoint} is not resumed, {problem}: moved to {target}, remove it when you do not need it")


def keep_finished_run(folder: Path) -> None:
    """Training from step 1 would end by replacing its model. Ends the process. A trial gives way to the next one."""
    if folder.resolve().name != TRIAL and (folder / "run.json").is_file():
        sys.exit(
            f"{folder} holds a finished run, and no checkpoint from which it could go on: training would begin at "
            "step 1 and replace its model.\nTake another --output_dir, or move that one away."
        )


def is_empty(folder: Path) -> bool:
    """As a kill leaves it between its making and its first file."""
    return next(folder.iterdir(), None) is None


def begin_anew(folder: Path) -> None:
    """For a run that cannot be resumed: what an earlier one saved would stand beside what this one saves."""
    keep_finished_run(folder)
    for checkpoint in list_checkpoints(folder).values():
        put_away(checkpoint, "its states were not saved")


def rotate_checkpoints(folder: Path, last: int, limit: int | None, best: int | None) -> None:
    """Remove sealed checkpoints up to step ``last`` but the ``limit`` newest and ``best``, once ``last`` has its seal.

    Trainer does it before that, and removes whatever is called checkpoint-something.
    """
    if not limit or limit < 0:
        return
    own = {step: path for step, path in list_checkpoints(folder).items() if step <= last and read_seal(path)}
    kept = {last, *([best] if best in own else [])}
    for step in reversed(own):
        if len(kept) < limit:
            kept.add(step)
    for step, path in own.items():
        if step not in kept and not path.is_symlink() and path not in STAYING:
            remove_checkpoint(path)


def remove_checkpoint(checkpoint: Path) -> None:
    """All of it or, after a kill, what is no checkpoint any more. One that cannot be removed is no reason to end."""
    doomed = checkpoint.with_name(f"{REMOVED}{checkpoint.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        checkpoint.rename(doomed)
    except OSError as error:
        STAYING.add(checkpoint)
        print(f"{checkpoint} stays: it cannot be removed ({error.strerror})")
        return
    shutil.rmtree(doomed, ignore_errors=True)  # what is open on another node of NFS goes at the next start


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
