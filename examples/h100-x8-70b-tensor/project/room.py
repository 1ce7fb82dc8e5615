"""Is there room for the weights that leave the device? Said before a byte of them is read."""

import shutil
import sys
from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
CACHED = ("inactive_file", "active_file")
"""Pages of files, in memory.stat: they count as used, and are given back where memory is wanted."""
HERE = Path(__file__).resolve().parent


def check_room(source: Path | str, most: dict[int | str, str]) -> None:
    """``most`` is what each place may hold, as from_pretrained has it; what is beyond that goes to the disk here."""
    room = {name: int(size.removesuffix("MiB")) * MIB for name, size in most.items()}
    free = read_free_bytes()
    files = sum(path.stat().st_size for path in source.glob("*.safetensors")) if isinstance(source, Path) else None
    devices = sum(size for name, size in room.items() if name != "cpu")
    host = room["cpu"] if files is None else min(room["cpu"], max(0, files - devices))
    if free is not None and free < host:
        sys.exit(
            f"{host / GIB:.1f} GiB of the weights stay in host memory, of which {free / GIB:.1f} are free: "
            "end other programs, or lower max_memory in model.py, and more of them go to the disk, which is slower."
        )
    beyond = max(0, files - devices - host) if files is not None else 0
    if beyond > (left := shutil.disk_usage(HERE).free):
        sys.exit(
            f"{beyond / GIB:.1f} GiB of the weights are to go to the disk of {HERE}, which has {left / GIB:.1f} free."
        )


def read_free_bytes(root: Path = Path("/")) -> int | None:
    """Of this machine, or of the control groups around this process; ``None`` where neither says."""
    memory, known = root / "proc/meminfo", list_free_bytes(root)
    if memory.exists():
        lines = (line.split() for line in memory.read_text(encoding="ascii").splitlines())
        known += [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    return min(known, default=None)


def list_free_bytes(root: Path) -> list[int]:
    """Of each control group of this process that has a limit, its own and all above."""
    groups, free = root / "proc/self/cgroup", []
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.exists() else []:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")  # v1, v2
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        # a container sees its own group at the top, whatever the group's name: what is not there is passed over
        inside = [part for part in group.split("/") if part and part != ".."]
        for depth in range(len(inside) + 1):
            folder = top.joinpath(*inside[:depth])
            limit, used = (folder / name for name in names)
            if limit.exists() and used.exists() and (most := limit.read_text(encoding="ascii").strip()).isdecimal():
                kept = count_cached_bytes(folder / "memory.stat", "total_" if controllers else "")
                free.append(max(0, int(most) - int(used.read_text(encoding="ascii")) + kept))
    return free


def count_cached_bytes(stat: Path, prefix: str) -> int:
    lines = (line.split() for line in stat.read_text(encoding="ascii").splitlines()) if stat.exists() else ()
    return sum(int(number) for name, number in lines if name in {prefix + each for each in CACHED})
