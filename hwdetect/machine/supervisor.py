"""Between us and a program: ends the program with all that it started, when it ends, when we ask, and when we die.

Run by path in an isolated Python (``-I -S``), so it imports little and nothing of ours: `supervisor.py SOCKET PROGRAM ARGUMENT…`.
On the socket it answers how the program ended; the other side closes it, or dies, and the tree is killed.
"""

import ctypes
import errno
import os
import select
import signal
import sys
import time

GRACE_S = 0.2  # how long what the program started may go on after it has ended
KILL_S = 2.0  # how long killing may take: a process inside the kernel (a hung driver) cannot be killed
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
LINUX = sys.platform == "linux"


def main() -> None:
    socket, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(socket, False)
    libc = ctypes.CDLL(None) if LINUX else None
    if libc:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans, also of a double fork, become ours
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program, problem = start_program(command, libc)
    silence_outputs()
    if problem:
        os.waitpid(program, 0)
        answer(socket, f"error {problem}")
        return
    status = wait_for_program(program, socket, ended)
    survivors = end_tree(program, ended, GRACE_S if status is not None else 0.0)
    status = survivors if status is None else status
    answer(socket, "unknown" if status is None else f"code {os.waitstatus_to_exitcode(status)}")


def start_program(command: list[str], libc: ctypes.CDLL | None) -> tuple[int, int]:
    """Its pid, in a session of its own, and the errno if it could not be started."""
    report, failed = os.pipe()  # closed by the start of the program
    program = os.fork()
    if program == 0:
        code = errno.ENOEXEC
        try:
            os.setsid()
            if libc:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # should we be killed
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for name in IGNORED_BY_PYTHON:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            os.execv(command[0], command)
        except OSError as error:
            code = error.errno or code
        finally:
            os.write(failed, str(code).encode())
            os._exit(127)
    os.close(failed)
    problem = os.read(report, 16)
    os.close(report)
    return program, int(problem or b"0")


def silence_outputs() -> None:
    """The program's outputs end with the program."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def wait_for_program(program: int, socket: int, ended: int) -> int | None:
    """Its status; ``None`` when the other side has closed the socket first."""
    while True:
        statuses, _ = reap()
        if program in statuses:
            return statuses[program]
        readable, _, _ = select.select([socket, ended], [], [])
        if socket in readable:
            return None
        drain(ended)


def drain(ended: int) -> None:
    try:  # noqa: SIM105  contextlib costs milliseconds
        os.read(ended, 4096)
    except BlockingIOError:
        pass


def reap() -> tuple[dict[int, int], bool]:
    """Children that have ended, with their statuses, and whether there are others."""
    statuses = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses, False
        if pid == 0:
            return statuses, True
        statuses[pid] = status


def end_tree(program: int, ended: int, grace: float) -> int | None:
    """Kill whatever is left of the program's tree after ``grace``; the program's own status, if it had not ended."""
    status, now = None, time.monotonic()
    kill_from, give_up = now + grace, now + grace + KILL_S
    while now < give_up:
        if now >= kill_from:
            for pid in list_descendants(os.getpid()):
                kill(pid)
            if not LINUX:  # no orphans come to us there: those of its group at least
                kill(-program)
        statuses, others = reap()
        status = statuses.get(program, status)
        if not others:  # where orphans come to us: nothing is left of the tree
            break
        select.select([ended], [], [], 0.002 if now >= kill_from else kill_from - now)
        drain(ended)
        now = time.monotonic()
    return status


def kill(pid: int) -> None:
    try:  # noqa: SIM105
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def list_descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in list_parents():
        children.setdefault(parent, []).append(pid)
    descendants, parents = [], [root]
    while parents:
        born = children.pop(parents.pop(), [])
        descendants += born
        parents += born
    return descendants


def list_parents() -> list[tuple[int, int]]:
    """Every process and its parent."""
    if not LINUX:
        with os.popen("/bin/ps -A -o pid=,ppid=") as lines:
            return [(int(a), int(b)) for a, b in (line.split() for line in lines)]
    pairs = []
    for name in os.listdir("/proc"):  # noqa: PTH208  so does pathlib
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    after_name = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            pairs.append((int(name), int(after_name[1])))
    return pairs


def answer(socket: int, text: str) -> None:
    try:  # noqa: SIM105
        os.write(socket, text.encode())
    except OSError:
        pass  # nobody is there any more


if __name__ == "__main__":
    main()
    os._exit(0)  # nothing to tidy up, and somebody waits
