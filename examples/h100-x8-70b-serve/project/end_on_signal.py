"""Ctrl-C, SIGTERM and a closed terminal end a job, and with it the processes that its engine has started."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def end_on_signal(advice: str) -> None:
    """For a job that loses nothing wherever it ends. No signal is blocked: the engine's processes would inherit that,
    and could not be told to stop; nor is this one ended at once: it is the engine that ends them, as Python leaves."""

    def leave(signum: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)  # once is enough: a second one would cut the engine's farewell short
        with suppress(OSError, AttributeError):  # the terminal is closed, or standard error was never open
            os.write(sys.stderr.fileno(), f"\nstopped by {signal.Signals(signum).name}: {advice}\n".encode())
        raise SystemExit(128 + signum)

    handled = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]  # as nohup has SIGHUP
    for each in handled:
        signal.signal(each, leave)
