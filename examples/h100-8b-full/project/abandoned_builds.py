"""A build that was killed leaves its lock, for which PyTorch waits without an end and without a word.

(torch/utils/file_baton.py: whoever builds an extension holds the file open until it removes it.)
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil
from torch.utils.cpp_extension import get_default_build_root

ELSEWHERE_SECONDS = 600.0
"""Where other nodes may build in the same folder: longer than any of DeepSpeed's takes (cpu_adam 140 s, two cores)."""
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs", "ramfs")
"""File systems of one machine. A home on another is one that other runs have too, each on a node of its own."""
LOOK_SECONDS = 2.0


def release_abandoned_builds(nodes: int) -> None:
    """Remove locks that nobody holds. Who of another node does is not seen from here: they may grow old first."""
    for lock in list_locks():
        wait_or_remove(lock, ELSEWHERE_SECONDS if nodes > 1 or not is_local(lock.resolve()) else 0.0)


def is_local(path: Path) -> bool:
    kinds = {Path(disk.mountpoint): disk.fstype for disk in psutil.disk_partitions(all=True)}
    return next((kinds[folder] for folder in path.parents if folder in kinds), "") in LOCAL


def list_locks() -> list[Path]:
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    return [*root.glob("*/lock"), *root.glob("*/*/lock")]


def wait_or_remove(lock: Path, oldest_seconds: float) -> None:
    announced = False
    with suppress(FileNotFoundError):  # whoever held it is ready, or another process has removed it
        while not is_held(lock):
            if time.time() - lock.stat().st_mtime >= oldest_seconds:
                lock.unlink()
                print(
                    f"{lock} was left by a build that was ended: it is removed, and the extension built anew",
                    flush=True,
                )
                return
            if not announced:
                print(
                    f"{lock}: no process of this machine holds it. If none of another node builds there, remove it; "
                    f"that is done by itself once it is {oldest_seconds:.0f} s old",
                    flush=True,
                )
                announced = True
            time.sleep(LOOK_SECONDS)


def is_held(lock: Path) -> bool:
    """By a process of this machine, of the same user: others cannot write there."""
    name = str(lock.resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # a process that has ended meanwhile, or another user's
            if str(link.readlink()) == name:
                return True
    return False
