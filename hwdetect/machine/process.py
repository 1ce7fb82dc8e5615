"""Running one program: by its own deadline, out of the working folder, its output bounded, nothing of it left behind.

A supervisor stands between us and the program (``supervisor.py``): it ends the program's tree, daemons too, when the program
has ended, when its time is over, and when we are killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hwdetect.machine.folder import decode_text
from hwdetect.machine.protocol import Output

GRACE_S = 0.2  # after a program's tree has been ended, how long its last output may take to be read
KILL_S = 3.0  # the supervisor gives up after 2 s: what is inside the kernel cannot be killed
MAX_OUTPUT_BYTES = 8 << 20  # the most that an honest tool says (rocm-smi -a of eight boards) is under 1 MiB
NOWHERE = os.sep  # a working folder that holds no file of a user
SUPERVISED = hasattr(os, "fork")
SUPERVISOR = (sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProcess:
    """What a process wrote, its exit code (negative: the signal) and what is wrong, ``None`` if it ended by itself."""

    raw: bytes
    errors: bytes = b""
    code: int | None
    problem: str | None


class Limited:
    """All of an output, up to ``MAX_OUTPUT_BYTES``: more is no honest answer, and ends the program."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> bool:
        """Whether there may be more."""
        self._chunks.append(chunk)
        self.size += len(chunk)
        return self.size <= MAX_OUTPUT_BYTES

    def join(self) -> bytes:
        """What is there now: behind a child that kept the pipe it may still grow."""
        return b"".join(tuple(self._chunks))


class HeadAndTail:
    """The beginning and the end of an output of any length."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self.size = 0

    def add(self, chunk: bytes) -> bool:
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        self.size += len(chunk)
        if len(self._tail) > 2 * self._tail_bytes:  # not at every chunk: what is cut off is moved
            del self._tail[: -self._tail_bytes]
        return True

    def join(self) -> bytes:
        head, tail = bytes(self._head), bytes(self._tail[-self._tail_bytes :])
        left_out = self.size - len(head) - len(tail)
        mark = f"\n[{left_out} bytes left out]\n".encode() if left_out > 0 else b""
        return head + mark + tail


class Lines:
    """An output line by line, as it comes; all that comes after ``MAX_OUTPUT_BYTES`` is lost with the program."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._size = 0

    def add(self, chunk: bytes) -> bool:
        self._chunks.put(chunk)
        self._size += len(chunk)
        return self._size <= MAX_OUTPUT_BYTES

    def read(self, seconds: float) -> Iterator[str]:
        """To its end, but no longer than ``seconds``."""
        ends, rest = time.monotonic() + seconds, b""
        with contextlib.suppress(queue.Empty):
            while chunk := self._chunks.get(timeout=max(0.0, ends - time.monotonic())):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(decode_text, lines)
        yield decode_text(rest)


Sink = Callable[[bytes], bool]
"""takes a piece of output, the last one empty; whether there may be more"""


class Program:
    """A running program. As a context: its tree has ended when the context is left, however it is left."""

    def __init__(
        self,
        command: tuple[str, ...],
        *,
        output: Sink,
        errors: Sink | int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        folder: str | Path = NOWHERE,
        given: bytes = b"",
    ) -> None:
        """Start it. ``given`` is its standard input. Raises ``OSError`` when nothing can be started at all."""
        self._ours, theirs = socket.socketpair()
        words = (*SUPERVISOR, str(theirs.fileno()), *command) if SUPERVISED else command
        with theirs, open_input(given) as stdin:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=errors if isinstance(errors, int) else subprocess.PIPE,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),) if SUPERVISED else (),
                )
            except BaseException:
                self._ours.close()
                raise
        sinks = [(self._process.stdout, output)]
        if not isinstance(errors, int):
            sinks.append((self._process.stderr, errors))
        self._readers = [threading.Thread(target=self._drain, args=pair, daemon=True) for pair in sinks]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._await_end(KILL_S)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=GRACE_S)
        self._ours.close()

    def wait(self, seconds: float) -> tuple[int | None, str | None]:
        """Its exit code, and what is wrong if it did not end by itself. Its tree has ended then."""
        seconds = max(0.0, seconds)
        problem, answered = None, self._await_end(seconds)
        if not answered:
            problem = f"no answer within {seconds:.1f} s"
            self.stop()
            answered = self._await_end(KILL_S)
        code = self._read_code() if answered else None
        for reader in self._readers:
            reader.join(timeout=GRACE_S)
        if isinstance(code, str):
            return None, code
        return code, problem

    def stop(self) -> None:
        """Have the tree killed."""
        if SUPERVISED:
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_WR)
        else:
            self._process.kill()

    def _await_end(self, seconds: float) -> bool:
        if SUPERVISED:
            return bool(select.select([self._ours], [], [], seconds)[0])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        return self._process.returncode is not None

    def _read_code(self) -> int | str | None:
        """The exit code, or why there is none."""
        if not SUPERVISED:
            return self._process.returncode
        kind, _, number = self._ours.recv(64).decode().partition(" ")
        if kind == "error":
            return f"cannot be started: {os.strerror(int(number))}"
        if not kind:
            return "its supervisor was killed"
        return int(number) if kind == "code" else None

    def _drain(self, pipe, sink: Sink) -> None:
        with contextlib.suppress(OSError, ValueError), pipe:
            while chunk := os.read(pipe.fileno(), 1 << 16):
                if not sink(chunk):
                    self.stop()
                    break
        sink(b"")


def open_input(text: bytes) -> BinaryIO:
    """A file without a name that holds ``text``: whoever reads it need not be waited for."""
    if not text:
        return Path(os.devnull).open("rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text)
    file.seek(0)
    return file


def build_own_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs ``main`` of one of our modules in a new Python; ``isolate_python`` is its environment.

    Neither the working folder's files nor ours can stand in for a module of Python itself (``-P``, and last of the path).
    """
    here = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({here!r}); from {module} import main; main(sys.argv[1:])"
    return (sys.executable, "-P", "-c", code, *arguments)


def isolate_python() -> dict[str, str]:
    """Our environment, by which a Python imports nothing of the working folder.

    An empty entry of PYTHONPATH is the working folder, which ``-P`` leaves in: `PYTHONPATH=$PYTHONPATH:/opt` begins with one.
    """
    entries = list_absolute(os.environ.get("PYTHONPATH", ""))
    dropped = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})


def find_program(name: str) -> str | None:
    """Where PATH has it, but for entries that are relative to the working folder."""
    return shutil.which(name, path=os.pathsep.join(list_absolute(os.environ.get("PATH", os.defpath))))


def list_absolute(paths: str) -> list[str]:
    return [path for path in paths.split(os.pathsep) if Path(path).is_absolute()]


def run_command(argv: tuple[str, ...], seconds: float) -> Output:
    """What the tool printed in the C locale, or why there is nothing. Never longer than ``seconds`` (plus a fraction)."""
    program = find_program(argv[0])
    if program is None:
        return Output(problem="not installed")
    if seconds <= 0:
        return Output(problem="no time left")
    plain = {**os.environ, "LC_ALL": "C", "LANG": "C", "LANGUAGE": "C"}
    ended = run_process((program, *argv[1:]), seconds, errors=subprocess.STDOUT, environment=plain)
    text = decode_text(ended.raw)
    return Output(text=text if ended.problem is None or text else None, code=ended.code, problem=ended.problem)


def run_process(
    command: tuple[str, ...],
    seconds: float,
    *,
    errors: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    folder: str | Path = NOWHERE,
    given: bytes = b"",
    output: Limited | HeadAndTail | None = None,
) -> EndedProcess:
    """Run a program to its end, its time or its flood, and leave nothing of it behind.

    ``errors``: DEVNULL, STDOUT or PIPE; ``output``: what is kept, by default ``Limited``. The environment is ours if none is given.
    """
    kept, kept_errors = output or Limited(), HeadAndTail(1 << 16, 1 << 16)
    try:
        program = Program(
            command,
            output=kept.add,
            errors=kept_errors.add if errors == subprocess.PIPE else errors,
            environment=environment,
            folder=folder,
            given=given,
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return EndedProcess(raw=b"", code=None, problem=f"cannot be started: {why}")
    with program:
        code, problem = program.wait(seconds)
    if isinstance(kept, Limited) and kept.size > MAX_OUTPUT_BYTES:
        return EndedProcess(raw=b"", code=code, problem=f"more than {MAX_OUTPUT_BYTES >> 20} MiB of output")
    return EndedProcess(raw=kept.join(), errors=kept_errors.join(), code=code, problem=problem)
