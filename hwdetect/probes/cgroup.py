"""CPU quota, memory limit and cpuset of the control groups this process is in (v1, v2, hybrid, the old cpuset tree).

A limit holds for a whole subtree, so the tightest of the chain from the process's own group up to the mount counts.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from hwdetect.machine.cpu_lists import parse_cpu_list
from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import parse_integer

NO_LIMIT_BYTES = 1 << 60  # v1 prints "no limit" as a number near 2^63; no host has an exbibyte


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the mount table. ``root`` is the part of the hierarchy that is visible at ``point``."""

    root: str
    point: str
    kind: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the control groups allow. ``None`` is no limit; ``cpus`` is ``None`` where no cpuset could be read.

    ``root_cpuset``: the process is in the root cpuset, which holds every CPU, whether or not its files can be read.
    """

    quota_cpus: float | None = None
    memory_bytes: int | None = None
    cpus: frozenset[int] | None = None
    root_cpuset: bool = False


def read_limits(machine: Machine, notes: Notes) -> Limits:
    """The tightest quota and memory limit of the chain, and the CPUs of the nearest cpuset. A file that says neither a limit nor
    that there is none gets a note."""
    mounts, groups = read_mounts(machine), read_groups(machine)
    quotas = [
        q
        for folder in _list_folders(machine, mounts, groups, "cpu")
        if (q := _read_quota(machine, folder, notes)) is not None
    ]
    limits = [
        m
        for folder in _list_folders(machine, mounts, groups, "memory")
        for m in _read_memory_limits(machine, folder, notes)
    ]
    return Limits(
        quota_cpus=min(quotas, default=None),
        memory_bytes=min(limits, default=None),
        cpus=_read_cpuset(machine, mounts, groups),
        root_cpuset=groups.get("cpuset") == "/",
    )


def read_mounts(machine: Machine) -> tuple[Mount, ...]:
    """Control-group mounts from mountinfo (which knows their root), else from a plain mount table, else usual places."""
    for name, parse in (("proc/self/mountinfo", _parse_mountinfo), ("proc/self/mounts", _parse_mounts)):
        text = machine.read(name) or (machine.read("proc/mounts") if parse is _parse_mounts else None)
        mounts = tuple(m for line in (text or "").splitlines() if (m := parse(line)))
        if mounts:
            return mounts
    return _guess_mounts(machine)


def _guess_mounts(machine: Machine) -> tuple[Mount, ...]:
    """Where systemd mounts the groups: one v2 tree, or one folder a controller."""
    top = "sys/fs/cgroup"
    if any(machine.exists(f"{top}/{name}") for name in ("cgroup.controllers", "cpu.max", "memory.max", "cgroup.procs")):
        return (Mount(root="/", point=f"/{top}", kind="cgroup2", options=frozenset()),)
    return tuple(
        Mount(root="/", point=f"/{top}/{name}", kind="cgroup", options=frozenset(name.split(",")))
        for name in machine.list_folder(top)
        if {"cpu", "memory", "cpuset"} & set(name.split(","))
    )


def _parse_mountinfo(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 6 or right[0] not in ("cgroup", "cgroup2", "cpuset"):
        return None
    options = frozenset(right[2].split(",")) if len(right) > 2 else frozenset()
    return Mount(root=_unescape(left[3]), point=_unescape(left[4]), kind=right[0], options=options)


def _parse_mounts(line: str) -> Mount | None:
    parts = line.split()
    if len(parts) < 4 or parts[2] not in ("cgroup", "cgroup2", "cpuset"):
        return None
    return Mount(root="/", point=_unescape(parts[1]), kind=parts[2], options=frozenset(parts[3].split(",")))


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), path)


def read_groups(machine: Machine) -> dict[str, str]:
    """The group of this process by controller; the v2 group under the empty name."""
    groups: dict[str, str] = {}
    for line in (machine.read("proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    own = (machine.read("proc/self/cpuset") or "").strip()
    if own:
        groups.setdefault("cpuset", own)
    return groups


def _list_folders(
    machine: Machine, mounts: tuple[Mount, ...], groups: dict[str, str], controller: str
) -> tuple[str, ...]:
    """The process's own group folder and every parent up to the mount, for one controller, nearest first."""
    folders: list[str] = []
    for mount in mounts:
        if mount.kind == "cgroup2":
            group = groups.get("", "/")
        elif controller in mount.options or mount.kind == controller:
            group = groups.get(controller, "/")
        else:
            continue
        if (
            mount.root != "/"
            and not _is_below(mount.root, group)
            and posixpath.basename(mount.root).startswith(f"{controller}.")
        ):
            continue  # one file of a hierarchy bound somewhere else
        folders += [f for f in _list_chain(machine, mount, group) if f not in folders]
    return tuple(folders)


def _list_chain(machine: Machine, mount: Mount, group: str) -> list[str]:
    point = mount.point.strip("/")
    root = mount.root.rstrip("/")
    inside = group[len(root) :] if _is_below(mount.root, group) else ""
    names = [name for name in inside.split("/") if name]
    if ".." in names:
        # ".." leads above what is mounted here: in a container the host's path means nothing.
        names = []  # a group outside of what this namespace shows: the mount itself is the nearest visible one
    while names and not machine.exists(posixpath.join(point, *names)):
        names.pop()
    return [posixpath.join(point, *names[:depth]) for depth in range(len(names), -1, -1)]


def _is_below(root: str, group: str) -> bool:
    root = root.rstrip("/")
    return group == root or group.startswith(root + "/")


def _read_quota(machine: Machine, folder: str, notes: Notes) -> float | None:
    """Quota in CPUs: ``cpu.max`` of v2, or the two files of v1."""
    text = machine.read(f"{folder}/cpu.max")
    if text is not None:
        both = text.split()
        # Without a period the kernel's default holds.
        quota, period = (parse_integer(both[0]) if both else None), parse_integer(both[1]) if len(both) > 1 else 100_000
        sound = both[:1] in (["max"], ["-1"]) or _is_above_zero(quota, period)
        _note_malformed(notes, "cpu.quota", f"{folder}/cpu.max", text, sound)
    else:
        texts = [machine.read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = (parse_integer(text) for text in texts)
        sound = texts[0] is None or quota == -1 or _is_above_zero(quota, period if texts[1] is not None else 1)
        _note_malformed(notes, "cpu.quota", f"{folder}/cpu.cfs_quota_us", " of ".join(filter(None, texts)), sound)
    return quota / period if quota and period and _is_above_zero(quota, period) else None


def _is_above_zero(quota: int | None, period: int | None) -> bool:
    return quota is not None and period is not None and quota > 0 and period > 0


def _note_malformed(notes: Notes, field: str, path: str, text: str, sound: bool) -> None:
    if not sound:
        holds = f"holds {' '.join(text.split())[:40]!r}" if text.strip() else "is empty"
        notes.add(field, "cgroup", f"{path} {holds}, which is no limit: counted as none, there may be one")


def _read_memory_limits(machine: Machine, folder: str, notes: Notes) -> list[int]:
    """Memory limits in bytes: v2, v1, and what v1 says of parents that are not visible from here."""
    named = [(name, machine.read(f"{folder}/{name}")) for name in ("memory.max", "memory.limit_in_bytes")]
    for line in (machine.read(f"{folder}/memory.stat") or "").splitlines():
        if line.startswith("hierarchical_memory_limit "):
            named.append(("memory.stat", line.split()[1]))
    limits = []
    for name, text in named:
        if text is None:
            continue
        limit = parse_integer(text)
        # v1's "no limit" is the largest multiple of the page size below 2^63, and -1 as it is written.
        sound = text.strip() in ("max", "-1") or (limit is not None and limit > 0)
        _note_malformed(notes, "memory.limit_bytes", f"{folder}/{name}", text, sound)
        if limit is not None and 0 < limit < NO_LIMIT_BYTES:
            limits.append(limit)
    return limits


def _read_cpuset(machine: Machine, mounts: tuple[Mount, ...], groups: dict[str, str]) -> frozenset[int] | None:
    """The nearest cpuset's list, the effective one before the configured one; ``noprefix`` mounts drop ``cpuset.``."""
    for folder in _list_folders(machine, mounts, groups, "cpuset"):
        for name in (
            "cpuset.cpus.effective",
            "cpuset.effective_cpus",
            "effective_cpus",
            "cpuset.cpus",
            "cpus",
        ):
            cpus = parse_cpu_list(machine.read(f"{folder}/{name}"))
            if cpus:
                return cpus
    return None
