"""Seals: what a checkpoint holds, byte for byte, written once all of it is on disk. Without one none is resumed."""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

SEAL = "complete.json"
"""Written last into a checkpoint: what run it belongs to, and every file with its size and hash."""
UNSEALED = "unfinished.txt"
"""Stands in a checkpoint from before its first file until its seal: what a kill leaves there is this project's own."""
BLOCK_BYTES = 64 << 20
READ_BYTES = 1 << 20
THREADS = min(16, os.cpu_count() or 1)


def begin_checkpoint(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNSEALED).write_text("train.py is writing this checkpoint, or was ended while it did\n", encoding="utf-8")


def cancel_checkpoint(folder: Path) -> None:
    """It was begun, and will not be written."""
    (folder / UNSEALED).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def write_seal(folder: Path, run: dict, known: Mapping[str, str] | None = None) -> None:
    """Bring every file of the checkpoint to disk, then seal it. ``known``: hashes of files that others have written."""
    files = list_files(folder)
    with ThreadPoolExecutor(4) as pool:
        synced = pool.map(sync_to_disk, files)
        hashes = {folder / name: value for name, value in (known or {}).items()}
        hashes |= hash_files([path for path in files if path not in hashes])  # in memory still, while the disk takes it
        list(synced)
    for parent in {folder, folder.parent, *(path.parent for path in files)}:
        sync_to_disk(parent)  # the names too
    sizes = {path: path.stat().st_size for path in files}
    rows = {str(path.relative_to(folder)): {"bytes": sizes[path], "sha256": hashes[path]} for path in files}
    content = {"run": run, "files": rows}
    draft = folder / f"{SEAL}.tmp"
    draft.write_text(json.dumps(content | {"sha256": hash_seal(content)}, indent=2), encoding="utf-8")
    sync_to_disk(draft)
    draft.replace(folder / SEAL)
    (folder / UNSEALED).unlink(missing_ok=True)
    sync_to_disk(folder)


def list_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (SEAL, UNSEALED)]


def read_seal(folder: Path) -> dict | None:
    """``run`` and ``files`` of a seal; ``None`` if there is none, or not the one that was written.

    One without a hash is of an earlier version: its files have sizes alone.
    """
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    match seal:
        case {"run": dict(run), "files": dict(files), **rest} if rest.keys() <= {"sha256"}:
            content = {"run": run, "files": files}
            hashed = all(isinstance(row, dict) and row.keys() == {"bytes", "sha256"} for row in files.values())
            sizes = all(isinstance(row, int) for row in files.values())
            return content if (rest == {"sha256": hash_seal(content)} and hashed) or (not rest and sizes) else None
    return None


def has_hashes(seal: dict) -> bool:
    return all(isinstance(row, dict) for row in seal["files"].values())


def find_damage(folder: Path, seal: dict) -> str | None:
    """The first file that is not the one that was sealed, and how it differs."""
    hashed = has_hashes(seal)
    sizes = {folder / name: row["bytes"] if hashed else row for name, row in seal["files"].items()}
    try:
        for path, size in sizes.items():
            if path.stat().st_size != size:
                return f"{path.name} has {path.stat().st_size:,} bytes, {size:,} were written"
        hashes = hash_files(sizes) if hashed else {}
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    wrong = [
        path.name for path, value in hashes.items() if value != seal["files"][str(path.relative_to(folder))]["sha256"]
    ]
    return f"{', '.join(wrong)} changed since" if wrong else None


def hash_seal(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """SHA-256 of the SHA-256 of every 64 MiB, so that several threads share a large file: hashing frees the GIL."""
    paths = list(paths)
    blocks = [(path, start) for path in paths for start in range(0, max(1, path.stat().st_size), BLOCK_BYTES)]
    sums = {path: hashlib.sha256() for path in paths}
    with ThreadPoolExecutor(THREADS) as pool:
        for (path, _), digest in zip(blocks, pool.map(hash_block, blocks), strict=True):
            sums[path].update(digest)
    return {path: value.hexdigest() for path, value in sums.items()}


def hash_block(block: tuple[Path, int]) -> bytes:
    path, start = block
    value, left = hashlib.sha256(), BLOCK_BYTES
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (part := file.read(min(READ_BYTES, left))):
            value.update(part)
            left -= len(part)
    return value.digest()


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # EINVAL: some shared file systems have no such call, for folders most of all
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
