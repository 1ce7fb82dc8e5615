"""Where files go: the working, cache and temporary folders, the kind of store under each, and its free space."""

from __future__ import annotations

import posixpath
import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.types import Disk

NETWORK = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "9p",
        "afs",
        "fuse.gcsfuse",
        "fuse.s3fs",
        "fuse.glusterfs",
        "wekafs",
        "pvfs2",
        "orangefs",
        "fuse.juicefs",
        "virtiofs",
        "fuse.goofys",
    ]
)
MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def read_disks(machine: Machine, notes: Notes) -> tuple[Disk, ...]:
    """One ``Disk`` for each role on a live machine; a recording says it in its machine.json."""
    if not machine.live:
        return ()
    table = _read_mount_table(machine)
    disks = []
    for role, path in _list_places(machine):
        space = machine.get_space(path)
        if space is None:
            notes.add(f"disks.{role}", "statvfs", f"{path} cannot be read")
            continue
        disks.append(
            Disk(
                role=role,
                path=path,
                kind=_find_kind(machine, table, path),
                total_bytes=space.total_bytes,
                free_bytes=space.free_bytes,
                writable=space.writable,
            )
        )
    return tuple(disks)


def _list_places(machine: Machine) -> tuple[tuple[str, str], ...]:
    """The folders that training writes to: the present one, the hub's cache, the temporary one."""
    home = machine.get_variable("HOME") or machine.get_variable("USERPROFILE") or "/"
    cache = (
        machine.get_variable("HF_HUB_CACHE")
        or machine.get_variable("HF_HOME")
        or posixpath.join(machine.get_variable("XDG_CACHE_HOME") or posixpath.join(home, ".cache"), "huggingface")
    )
    temporary = machine.get_variable("TMPDIR") or machine.get_variable("TEMP") or "/tmp"
    here = machine.get_working_folder()
    return ("work", here), ("cache", _find_existing(machine, cache)), ("tmp", temporary)


def _find_existing(machine: Machine, path: str) -> str:
    """The nearest folder above that exists: a cache is made on first use."""
    while path not in ("", "/") and not machine.exists(path.lstrip("/")):
        path = posixpath.dirname(path)
    return path or "/"


def _read_mount_table(machine: Machine) -> list[tuple[str, str, str, str]]:
    """(mount point, filesystem, device, major:minor), in the order of mounting."""
    rows = []
    for line in (machine.read("proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if separator and len(left) >= 5 and len(right) >= 2:
            # The kernel writes blanks in paths in octal.
            rows.append((left[4].replace("\\040", " "), right[0], right[1], left[2]))
    return rows


def _find_kind(machine: Machine, table: list[tuple[str, str, str, str]], path: str) -> str | None:
    """nvme, ssd, hdd, network, memory or overlay; ``None`` where the block device does not say."""
    real = "/" + (machine.resolve_link(path.lstrip("/")) or path.lstrip("/"))
    under = [row for row in table if real == row[0] or real.startswith(row[0].rstrip("/") + "/")]
    if not under:
        return None
    # The longest mount point holds the path; of two at one point the later one covers the earlier.
    _, filesystem, device, number = max(enumerate(under), key=lambda item: (len(item[1][0]), item[0]))[1]
    if filesystem in MEMORY:
        return "memory"
    if filesystem in NETWORK:
        return "network"
    if filesystem == "overlay":
        return "overlay"
    return _find_block_kind(machine, device, number)


def _find_block_kind(machine: Machine, device: str, number: str) -> str | None:
    folder = machine.resolve_link(f"sys/dev/block/{number}")
    if folder is None:  # btrfs and zfs have anonymous numbers: go by the device's name
        folder = (
            machine.resolve_link(f"sys/class/block/{posixpath.basename(device)}")
            if device.startswith("/dev/")
            else None
        )
    if folder is None:
        return None
    lowest = _find_lowest(machine, folder)
    name = posixpath.basename(lowest)
    if re.match(r"nvme\d", name):
        return "nvme"
    # virtio and Xen disks: what lies beneath is the host's secret, and "rotational" is often a default.
    if re.match(r"(vd|xvd)[a-z]", name):
        return "virtual"
    # A partition has no queue of its own, its parent folder is the disk.
    disk = lowest if machine.exists(f"{lowest}/queue") else posixpath.dirname(lowest)
    if re.match(r"nvme\d", posixpath.basename(disk)):
        return "nvme"
    rotational = (machine.read(f"{disk}/queue/rotational") or "").strip()
    return {"0": "ssd", "1": "hdd"}.get(rotational)


def _find_lowest(machine: Machine, folder: str) -> str:
    """Below device mapper and md: the first of the disks that carry it."""
    for _ in range(8):
        slaves = machine.list_folder(f"{folder}/slaves")
        below = machine.resolve_link(f"{folder}/slaves/{slaves[0]}") if slaves else None
        if below is None:
            return folder
        folder = below
    return folder
