"""Where `perfgen` begins: Ctrl-C while the rest is imported ends it as Ctrl-C does, without a traceback.

An empty entry of PYTHONPATH is the working folder (`PYTHONPATH=$PYTHONPATH:/opt/x` begins with one), and a json.py of a user's would
be taken for Python's. What runs before this module cannot be helped here: a sitecustomize.py there, or a generator/.
"""

import os
import sys

OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is one of those imports
given = os.environ.get("PYTHONPATH", "")
relative = {os.path.abspath(entry) for entry in given.split(os.pathsep) if not os.path.isabs(entry)} if given else set()  # noqa: PTH100, PTH117
sys.path[:] = [path for path in sys.path if path == OWN or path not in relative]

import signal  # noqa: E402


def open_closed_streams() -> None:
    """Standard streams that whoever started us has closed (`<&-`) lead to nothing. Else the next file that is opened would be one of
    them, and a child would write what it says into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def main() -> None:
    open_closed_streams()
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from generator import cli

    signal.signal(signal.SIGINT, usual)
    cli.main()
