"""Ctrl-C, SIGTERM and a closed terminal end a job at once, also while a library computes and Python does not run."""

import os
import signal
import sys
import threading
from contextlib import suppress

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def end_on_signal(advice: str) -> None:
    """For a job that loses nothing wherever it ends. Before the imports: threads that libraries start then leave
    signals to the one that waits for them here."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as nohup has it
        SIGNALS.discard(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=wait_for_signal, args=(advice,), daemon=True).start()


def wait_for_signal(advice: str) -> None:
    signum = signal.sigwait(SIGNALS)
    line = f"\nstopped by {signal.Signals(signum).name}: {advice}\n"
    with suppress(OSError, AttributeError):  # the terminal is closed, or standard error was never open
        os.write(sys.stderr.fileno(), line.encode())
    os._exit(128 + signum)
