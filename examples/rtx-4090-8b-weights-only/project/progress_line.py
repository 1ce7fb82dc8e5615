"""How far a long job is: one line that is written over on a terminal, a line every half minute elsewhere."""

import os
import sys
import time

QUIET_SECONDS = 30.0
"""Between two lines in a file or a pipe."""
SHOWN_SECONDS = 0.2
"""Between two on a terminal."""


class ProgressLine:
    """On standard error: standard output is for what was asked for."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.shown_at = time.monotonic() if not self.terminal else 0.0
        self.open = False

    def show(self, text: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self.shown_at < (SHOWN_SECONDS if self.terminal else QUIET_SECONDS):
            return
        self.shown_at = now
        if self.terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(f"\r{text[: width - 1]}\x1b[K")
            self.open = True
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """The cursor stands on a new line."""
        if self.open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self.open = False


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
