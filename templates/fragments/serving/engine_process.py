"""An engine's library in a process of its own, where it holds Python's lock (the GIL) for as long as it computes.

In the server's process it would stop everything else until a step is over: /health, answers of others, who has gone.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine_thread import measure_peak_gib

END_SECONDS = 20.0


class LibraryGone(Exception):
    """Its process has ended: no request can be answered any more."""


class LibraryProcess:
    """The one that runs ``script``. Each call waits for what it returns, and others of this process go on meanwhile."""

    def __init__(self, script: Path, *settings: Any) -> None:
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is for whoever asks: it goes on until they hang up
        )
        theirs.close()
        self.calling = threading.Lock()
        self.peak_gib = 0.0
        """Most that it has held."""
        try:
            self.call("__init__", *settings)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *args: Any) -> Any:
        """What the library raises is raised here; LibraryGone where it cannot be asked."""
        with self.calling:
            try:
                self.connection.send((name, args))
                result, problem, self.peak_gib = self.connection.recv()
            except (EOFError, OSError):
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(END_SECONDS)
                code = self.process.poll()
                raise LibraryGone(f"the engine's process has ended ({code}): the log says why, if it could") from None
        if problem is not None:
            raise problem
        return result

    def close(self) -> None:
        """It ends as nobody can ask it any more."""
        self.connection.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answer_calls(make: Callable[..., Any]) -> None:
    """In that process: methods of what ``make`` makes of the settings, until whoever calls them is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a service manager, all processes get them
        signal.signal(number, signal.SIG_IGN)
    connection, library = Connection(int(sys.argv[1])), None
    with suppress(EOFError, OSError):
        while True:
            name, args = connection.recv()
            result = problem = None
            try:
                if library is None:
                    library = make(*args)
                else:
                    result = getattr(library, name)(*args)
            except Exception as error:  # whatever the library raises, which may be known here alone
                of_its_own = type(error).__module__ != "builtins"
                problem = RuntimeError(f"{type(error).__name__}: {error}") if of_its_own else error
            connection.send((result, problem, measure_peak_gib()))
