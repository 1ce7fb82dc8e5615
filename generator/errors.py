"""What can go wrong that a user can cause: each error has the documented exit code and says what, against what, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from generator.masking import mask_secrets

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_control(text: str) -> str:
    """``text`` as a terminal shows it and does not obey it; line breaks and tabs stay."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def suggest_names(wrong: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint that names what is spelled most like ``wrong``; ``otherwise`` where nothing is."""
    from difflib import get_close_matches  # only after a mistake

    near = get_close_matches(wrong, dict.fromkeys(known), 3)
    return f"did you mean {', '.join(near)}?" if near else otherwise


def quote_error(error: object, most: int = 240) -> str:
    """What a library said, on one line, and no page of it: Transformers lists all models that it knows."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


class PerfgenError(Exception):
    """A message for the user. ``hint`` says what to do next."""

    code = 1

    def __init__(self, message: str, hint: str | None = None):
        self.message = escape_control(mask_secrets(message))
        self.hint = hint and escape_control(mask_secrets(hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(PerfgenError):
    """Options that are wrong or contradict each other."""

    code = 2


class NothingFits(PerfgenError):
    """No configuration fits; the message names the shortfall, ``ladder`` the nearest plans that fit, ``obstacles`` what could not be
    used at all, by id, with the reason (``None``: not known)."""

    code = 3

    def __init__(
        self, message: str, hint: str | None = None, ladder: tuple = (), obstacles: Mapping[str, str] | None = None
    ):
        super().__init__(message, hint)
        self.ladder = ladder
        self.obstacles = obstacles


class NotEmitted(NothingFits):
    """The plan is sound, and no project can be made of it yet; the hint names the best plan that one can be made of."""


class SourceError(PerfgenError):
    """Model or data that cannot be used."""

    code = 4


class OtherTask(SourceError):
    """Data that is for another task, which the hint names."""

    def __init__(self, message: str, task: str):
        super().__init__(message, f"use --task {task}")
        self.task = task


class DestinationError(PerfgenError):
    """The destination folder cannot be written as asked."""

    code = 5


class SmokeError(PerfgenError):
    """The generated project did not run."""

    code = 6


class ReportedError(PerfgenError):
    """An outcome with an exit code of its own. ``report`` is what --json prints of it beside the error."""

    def __init__(self, message: str, hint: str | None = None, report: dict[str, object] | None = None):
        super().__init__(message, hint)
        self.report = report or {}


class ConflictError(ReportedError):
    """A merge that left conflicts marked."""

    code = 5


class DriftError(ReportedError):
    """A generated file no longer is what the plan says."""

    code = 7
