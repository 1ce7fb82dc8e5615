"""Is there room for the weights that leave the device? Said before a byte of them is read."""

import shutil
import sys
from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
MEMORY, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
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


def read_free_bytes() -> int | None:
    """Of this machine, or of the container around this process; ``None`` where neither says."""
    known = []
    if MEMORY.exists():
        lines = (line.split() for line in MEMORY.read_text(encoding="ascii").splitlines())
        known += [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    limit, used = GROUP / "memory.max", GROUP / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text(encoding="ascii").strip()) != "max":
        known.append(max(0, int(most) - int(used.read_text(encoding="ascii"))))
    return min(known, default=None)
