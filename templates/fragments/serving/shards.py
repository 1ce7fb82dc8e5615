"""What a batch has computed: a sealed file of each shard beside the output, which is made of them at the end.

A process that is killed loses the shard that it was computing. Nothing is appended to a file that others read.
"""

import errno
import fcntl
import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from seals import sync_to_disk

JOB = "job.json"
"""What the answers depend on: a start with another model or other rows would mix two jobs."""
LOCK = "_batch.lock"
DRAFT = "_draft"
"""Before the name of what is being written: a kill may leave it, and nobody reads it."""


class Shards:
    """The folder of parts of one output. One process at a time works there."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(f"{output.name}.parts")
        self.lock = -1

    def claim(self) -> None:
        """Make the folder, and keep other processes out. Ends the process where that cannot be."""
        try:
            if self.folder.exists() and not self.folder.is_dir():
                sys.exit(f"{self.folder} is there and no folder, for parts of {self.output.name}: move it away")
            known = not self.folder.exists() or any((self.folder / name).exists() for name in (JOB, LOCK))
            if not known and any(self.folder.iterdir()):
                sys.exit(f"{self.folder} holds something else than parts of {self.output.name}: move it away")
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            if self.lock < 0:
                end_unwritable(self.folder, error)
            sys.exit(f"{self.folder}: another process is at work there. Wait for it, or name another --output.")
        except OSError as error:
            if self.lock < 0 or is_full(error):
                end_unwritable(self.folder, error)
            print(f"{self.folder} cannot be locked ({error.strerror}): see that no other batch.py writes there")
        if not self.holds_lock():  # another one was done in between, and removed the folder; a third may be there
            sys.exit(f"{self.folder} was removed just now, by another process that is done: run again.")

    def holds_lock(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.lock), (self.folder / LOCK).stat())
        except FileNotFoundError:
            return False

    def open_job(self, job: dict) -> None:
        """Go on with a job, or begin it. Ends the process where the one that was begun is another."""
        path = self.folder / JOB
        if path.exists() and (changes := list_changes(read_record(path), job)):
            sys.exit(
                f"{self.folder} was begun otherwise: {'; '.join(changes)}.\n"
                f"Undo that, name another --output, or remove {self.folder.name} to begin anew."
            )
        self.write(JOB, json.dumps(job, indent=2).encode())

    def write(self, name: str, content: bytes) -> None:
        """A file that is there once all of it is on disk."""
        draft = self.folder / f"{DRAFT}-{name}"
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self.folder / name)
        sync_to_disk(self.folder)

    def name(self, number: int) -> str:
        return f"part-{number:08d}.jsonl"

    def seal(self, number: int, results: list[dict]) -> None:
        """The rows of a shard; its last line is their number and hash."""
        content = b"".join(dump_line(result) for result in results)
        seal = {"rows": len(results), "sha256": hashlib.sha256(content).hexdigest()}
        self.write(self.name(number), content + dump_line(seal))

    def read(self, number: int) -> list[bytes] | None:
        """The lines of a shard, as they were sealed. ``None`` where it is not there, or is not what was written."""
        path = self.folder / self.name(number)
        try:
            *lines, last = path.read_bytes().splitlines(keepends=True) or [b""]
            seal = json.loads(last)
        except FileNotFoundError:
            return None
        except ValueError:
            seal, lines = None, []
        if seal != {"rows": len(lines), "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}:
            print(f"{path} is not what was written: computed again", file=sys.stderr)
            return None
        return lines

    def read_sealed(self, number: int) -> list[bytes]:
        """The lines of a shard that was done. Ends the process where it is no more."""
        lines = self.read(number)
        if lines is None:
            sys.exit(f"{self.folder / self.name(number)} has changed since it was sealed: run again")
        return lines

    def remove(self) -> None:
        """The lock last: until then nobody begins there. Where somebody does after that, the folder is theirs."""
        for path in self.folder.iterdir():
            if path.name != LOCK:
                path.unlink()
        (self.folder / LOCK).unlink()
        os.close(self.lock)
        with suppress(OSError):
            self.folder.rmdir()


def read_record(path: Path) -> dict:
    """What a job is, or was. Ends the process where the file says nothing of one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        sys.exit(f"{path} is not what was written there: remove it, and run again")
    return record


def dump_line(row: dict) -> bytes:
    """Letters as they are, but where UTF-8 cannot hold them; the same bytes for the same row. JSON has no NaN and no
    infinity, and most that read it take neither: they are null."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=dump_value).encode() + b"\n"
    except ValueError:  # one of these, or half a surrogate pair
        finite = json.loads(json.dumps(row, default=dump_value), parse_constant=lambda _: None)
    try:
        return json.dumps(finite, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(finite).encode() + b"\n"


def dump_value(value: object) -> str:
    """What Parquet can hold and JSON cannot: bytes in hexadecimal digits; dates and decimals as they are written."""
    return value.hex() if isinstance(value, bytes) else str(value)


def list_changes(before: dict, now: dict) -> list[str]:
    """The settings that differ, each with both values; where the rows were read does not matter."""
    flat = flatten(before | {"seen": None}), flatten(now | {"seen": None})
    names = sorted(name for name in {*flat[0], *flat[1]} if flat[0].get(name) != flat[1].get(name))
    return [f"{name} was {flat[0].get(name)}, now {flat[1].get(name)}" for name in names]


def flatten(settings: dict, before: str = "") -> dict[str, object]:
    rows: dict[str, object] = {}
    for name, value in settings.items():
        rows |= flatten(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return rows


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def end_unwritable(place: Path, error: OSError) -> NoReturn:
    """Two lines: what the system said, and what to do."""
    advice = "Free some space and run again" if is_full(error) else "See who owns it, or name another --output"
    if error.errno == errno.EFBIG:
        advice = "Files may not be longer here: raise the limit (ulimit -f) and run again"
    sys.exit(f"{place} takes no files: {error.strerror}.\n{advice}: shards that are done are kept.")
