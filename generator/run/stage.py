"""One command of a smoke run, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    command: tuple[str, ...]
    returncode: int | None
    """``None``: it ran out of time and was killed"""
    seconds: float
    output: str
