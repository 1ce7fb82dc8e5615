"""What the terminal gives and gets: names near a flag that is wrong, and text that it shows and does not obey."""

import argparse
import atexit
import io
import os
import re
import select
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import TextIO

from transformers import TextStreamer

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, which turns the direction of a line too, and what UTF-8 cannot hold; line breaks and tabs are
left."""


def escape_control(text: str) -> str:
    """Shown, not obeyed: a row, a label or an answer may hold what moves the cursor, or writes to the clipboard."""
    return CONTROL.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if match[0] < "\u0100" else f"\\u{ord(match[0]):04x}", text
    )


class EscapedStreamer(TextStreamer):
    """The answer as it comes."""

    def on_finalized_text(self, text: str, stream_end: bool = False):
        super().on_finalized_text(escape_control(text), stream_end)


def parse_flags(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The flags; one line and exit code 2 for one that there is not, or one that is missing."""
    open_streams()
    needed = [action for action in parser._actions if action.required]
    for action in needed:
        action.required = False  # what is missing may be there, and misspelt: of that argparse says nothing
    args, unknown = parser.parse_known_args()
    missing = [action.option_strings[0] for action in needed if getattr(args, action.dest) is None]
    if unknown or missing:
        parser.usage = argparse.SUPPRESS  # it would stand before the message
        parser.error(describe_unknown(parser, unknown) if unknown else f"{' and '.join(missing)} must be given")
    return args


def open_streams() -> None:
    """Where nobody reads what is printed any more (`| head -1`), the program ends, which is no error of it."""
    open_closed()
    sys.stderr = keep_open(sys.stderr, sys.__stderr__)
    show = sys.excepthook

    def show_unless_unread(kind, error, trace) -> None:
        if not (drop_unread() and issubclass(kind, BrokenPipeError)):
            show(kind, error, trace)

    sys.excepthook = show_unless_unread
    atexit.register(drop_unread)  # what is still to be written then


def keep_streams() -> None:
    """What is printed is not the work: that goes on where a log takes no more lines, for its disk is full, or for the
    `tee` that writes it went with Ctrl-C, which asks this program to save."""
    open_closed()
    sys.stdout, sys.stderr = keep_open(sys.stdout, sys.__stdout__), keep_open(sys.stderr, sys.__stderr__)


def open_closed() -> None:
    """A stream that is closed (`<&-`) is None, and its number goes to the next file that is opened, into which others
    then write."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if not is_open(number):
                os.dup2(null, number)
            setattr(sys, name, os.fdopen(null, "w" if number else "r"))


def keep_open(stream: TextIO, original: TextIO | None) -> TextIO:
    """As a ``Log``, unless somebody has put another in its place."""
    if stream is not original or not isinstance(stream, io.TextIOWrapper):
        return stream
    with suppress(OSError):
        stream.flush()
    file = os.fdopen(stream.fileno(), "wb", closefd=False)
    by_line = stream.line_buffering or stream.write_through  # PYTHONUNBUFFERED, as most containers have it
    return Log(file, encoding=stream.encoding, errors="backslashreplace", line_buffering=by_line)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


class Log(io.TextIOWrapper):
    """A stream, as long as it takes what is written. Its end is none of the work, and tqdm waits for itself for ever
    where its bar cannot be written."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def drop_unread() -> bool:
    """Whether nobody reads standard output. What is still to be written then goes nowhere: Python would speak of it."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    unread = any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    if unread:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return unread


def describe_unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """That the parser has no such flags, and the nearest that it has."""
    flags = [word.split("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")]
    names = [action.option_strings[0][2:] for action in parser._actions if action.option_strings]
    near = suggest_names(flags, names, "--") or f"; {parser.prog} --help lists them"
    return f"no such argument: {' '.join(words)}{near}"


def suggest_names(wrong: Iterable[str], names: Iterable[str], before: str = "") -> str:
    """A question that names those nearest to each, or nothing."""
    near = [name for word in wrong for name in get_close_matches(word, list(names))]
    return f"; did you mean {' or '.join(f'{before}{name}' for name in dict.fromkeys(near))}?" if near else ""
