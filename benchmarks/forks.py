"""A script in a fork of a process that has its libraries already: seconds where a new process takes half a minute."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def run_in_fork(work: Callable[[], object], log: Path, seconds: int = 0) -> int:
    """Its exit code, negative for a signal; both streams go to ``log``. ``seconds``: of a limit, 0 for none."""
    pid = os.fork()
    if not pid:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.alarm(seconds)
        code = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            code = 1 if isinstance(end.code, str) else end.code or 0
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def become_script(project: Path, words: list[str]) -> None:
    """Run a script of ``project`` with its flags in this process, as ``python`` would."""
    os.chdir(project)
    sys.path.insert(0, str(project))
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
