"""Where `perfgen` begins: Ctrl-C while the rest is imported ends it as Ctrl-C does, without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from generator import cli

    signal.signal(signal.SIGINT, usual)
    cli.main()
