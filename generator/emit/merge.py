"""Three versions of a text into one: what perfgen emitted, what stands there now, what it would emit today.

The classic algorithm (Khanna, Kunal, Pierce: A Formal Investigation of Diff3, FSTTCS 2007) on the standard library's matching
blocks. git's own merge is not asked: it need not be installed, and a merge must not depend on its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from itertools import takewhile

BEFORE, BETWEEN, AFTER = b"<<<<<<< before updating", b"=======", b">>>>>>> after updating"
"""Around the two sides of a conflict: Copier's words."""
Lines = list[bytes]


@dataclass(frozen=True, slots=True)
class Merged:
    """``content`` with both sides of every conflict between markers, or (``conflicts`` 0) without one.

    ``mine`` is the same with the user's side of each conflict alone, ``rejects`` what was not applied to that, as a unified diff.
    """

    content: bytes
    conflicts: int
    mine: bytes
    rejects: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of lines: ``lines`` where the versions agree on it, else (``None``) its three versions."""

    lines: Lines | None
    base: Lines
    mine: Lines
    new: Lines


def is_binary(content: bytes) -> bool:
    """As git judges it: a NUL among the first bytes."""
    return b"\0" in content[:8000]


def split_lines(content: bytes) -> Lines:
    """Lines with their ends, at line feeds only: joined, they are ``content``."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def adopt_line_ends(content: bytes, like: bytes) -> bytes:
    """``content`` with line ends of Windows where every line of ``like`` has them."""
    ends = like.count(b"\n")
    if not ends or like.count(b"\r\n") != ends or b"\r" in content:
        return content
    return content.replace(b"\n", b"\r\n")


def merge_texts(base: bytes, mine: bytes, new: bytes, name: str = "") -> Merged:
    """``new`` with the edits that made ``mine`` of ``base``. Where both changed the same or neighbouring lines is a conflict."""
    end = b"\r\n" if b"\r\n" in mine else b"\n"
    marked, kept, theirs, conflicts = [], [], [], 0
    for chunk in compare_versions(split_lines(base), split_lines(mine), split_lines(new)):
        if chunk.lines is not None:
            for side in (marked, kept, theirs):
                side += chunk.lines
            continue
        conflicts += 1
        kept += chunk.mine
        theirs += chunk.new
        marked += [BEFORE + end, *end_line(chunk.mine, end), BETWEEN + end, *end_line(chunk.new, end), AFTER + end]
    rejects = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in unified_diff(decode_lines(kept), decode_lines(theirs), f"{name} (yours)", f"{name} (new)")
    )
    return Merged(b"".join(marked), conflicts, b"".join(kept), rejects.encode("utf-8", "surrogateescape"))


def decode_lines(lines: Lines) -> list[str]:
    return [line.decode("utf-8", "surrogateescape") for line in lines]


def end_line(lines: Lines, end: bytes) -> Lines:
    """A marker begins a line."""
    return lines if not lines or lines[-1].endswith(b"\n") else [*lines[:-1], lines[-1] + end]


def compare_versions(base: Lines, mine: Lines, new: Lines) -> Iterator[Chunk]:
    """The three versions as runs of lines, of which each is agreed on or in conflict."""
    at_base = at_mine = at_new = 0
    for in_base, in_mine, in_new, length in list_common_runs(base, mine, new):
        yield from settle(base[at_base:in_base], mine[at_mine:in_mine], new[at_new:in_new])
        if length:
            lines = base[in_base : in_base + length]
            yield Chunk(lines, lines, lines, lines)
        at_base, at_mine, at_new = in_base + length, in_mine + length, in_new + length


def settle(base: Lines, mine: Lines, new: Lines) -> Iterator[Chunk]:
    """What only one of the two changed, or both alike, is agreed on; of the rest what both begin and end with too."""
    if mine == new or new == base:
        lines = mine
    elif mine == base:
        lines = new
    else:
        head = count_equal(mine, new)
        tail = count_equal(mine[head:][::-1], new[head:][::-1])
        first, last = mine[:head], mine[len(mine) - tail :]
        yield Chunk(first, first, first, first)
        yield Chunk(None, base, mine[head : len(mine) - tail], new[head : len(new) - tail])
        yield Chunk(last, last, last, last)
        return
    yield Chunk(lines, base, mine, new)


def count_equal(a: Lines, b: Lines) -> int:
    """Lines that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def list_common_runs(base: Lines, mine: Lines, new: Lines) -> Iterator[tuple[int, int, int, int]]:
    """Where lines of ``base`` stand in both others: three starts and a length, in order; the last is the end, of length 0."""
    in_mine = SequenceMatcher(None, base, mine, autojunk=False).get_matching_blocks()
    in_new = SequenceMatcher(None, base, new, autojunk=False).get_matching_blocks()
    i = j = 0
    while i < len(in_mine) and j < len(in_new):
        a, b = in_mine[i], in_new[j]
        start, end = max(a.a, b.a), min(a.a + a.size, b.a + b.size)
        if start < end:
            yield start, a.b + start - a.a, b.b + start - b.a, end - start
        if a.a + a.size <= b.a + b.size:
            i += 1
        else:
            j += 1
    yield len(base), len(mine), len(new), 0
