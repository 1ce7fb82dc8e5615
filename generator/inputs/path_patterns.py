"""Patterns of paths, as fsspec reads them, matched in a time that no pattern can make long.

fsspec makes one regular expression of a pattern, and ``*a*a*a*a*a*a*b`` then tries every way to divide a name: such a README would
stop a plan for hours. Here each part between slashes is matched piece by piece, from left to right. (There a class like ``[!a]``
may stand for a slash; here it does not.)
"""

from __future__ import annotations

import re
from functools import lru_cache

ANY = "[^/]*"
"""what ``*`` is in fsspec's regular expression of a part; no other piece of one is written so"""


def matches(pattern: str, path: str) -> bool:
    """Whether ``pattern`` matches all of ``path``. Raises ``ValueError``, ``re.error`` for what is no pattern."""
    parts, names = pattern.split("/"), path.split("/")
    reached = {0}  # how many names the parts so far may stand for
    for place, part in enumerate(parts):
        if part != "**":
            pieces = split_part(part)
            reached = {n + 1 for n in reached if n < len(names) and matches_name(part, pieces, names[n])}
        elif place == len(parts) - 1:
            return any(n < len(names) for n in reached)
        else:
            reached = {m for n in reached for m in range(n, len(names) + 1)}
    return len(names) in reached


@lru_cache(maxsize=256)
def split_part(part: str) -> tuple[re.Pattern[str], ...]:
    """What stands between the asterisks of a part, each as an expression of one length."""
    from fsspec.utils import glob_translate

    expression = glob_translate(part).removeprefix("(?s:").removesuffix(r")\Z")
    return tuple(re.compile(f"(?s:{piece})") for piece in expression.split(ANY))


def matches_name(part: str, pieces: tuple[re.Pattern[str], ...], name: str) -> bool:
    """The first piece at the start, the last at the end, the others one after the other, each as early as it can."""
    if part == "*":
        return bool(name)
    first, *between = pieces
    if not between:
        return bool(first.fullmatch(name))
    hit = first.match(name)
    for piece in between[:-1]:
        hit = hit and piece.search(name, hit.end())
    if not hit:
        return False
    last = re.compile(rf"{between[-1].pattern}\Z")
    return bool(last.search(name, hit.end()))
