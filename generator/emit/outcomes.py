"""What becomes of each file in an update: decided of what perfgen emitted, what stands there and what it would emit today."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, unified_diff
from enum import StrEnum
from pathlib import Path

from generator.emit.emitted import BESIDE, FILE, FOLDER, MOST_BYTES, Emitted, Tree, read_emitted
from generator.emit.merge import AFTER, BEFORE, adopt_line_ends, decode_lines, is_binary, merge_texts, split_lines
from generator.emit.place import MARK
from generator.errors import DestinationError

OWN = ("plan.json", MARK, FILE, *BESIDE)
"""Written by perfgen for perfgen: never merged."""
NEW, REJECTED, MINE = ".perfgen-new", ".rej", ".mine"
"""Endings of what is written beside a file: the version that could not take its place, the hunks that could not, and the user's
version of a file of perfgen's own."""


SECTIONS = re.compile(rb"(<!-- (smoke|run):begin -->\n)(.*?)(<!-- \2:end -->)", re.DOTALL)
"""Of report.html what runs fill in."""
REPORT = "report.html"


class Kind(StrEnum):
    """What becomes of a file, in the words of the list."""

    SAME = "unchanged"
    UPDATED = "updated"
    ADDED = "added"
    MERGED = "merged with your edits"
    KEPT = "your edits stay, nothing new in it"
    CONFLICT = "CONFLICT"
    REMOVED = "removed: the new plan has none, and you had not changed it"
    DROPPED = "kept: the new plan has none, but you changed it"
    DELETED = "stays deleted: you removed it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``content`` (``None``: as it is) and mode that the file gets; ``beside`` is written under another name."""

    name: str
    kind: Kind
    content: bytes | None = None
    executable: bool = False
    why: str = ""
    beside: tuple[str, bytes] | None = None
    added: int = 0
    removed: int = 0
    """lines, against what stands there"""

    @property
    def writes(self) -> bool:
        return self.content is not None or self.beside is not None or self.kind is Kind.REMOVED


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands under a name: a ``file``, or what is in its way, in words; neither: nothing."""

    file: Emitted | None = None
    obstacle: str = ""


def read_standing(folder: Path, name: str) -> Standing:
    """What stands there. Links are not followed: what they lead to is not the project's. Raises ``OSError``."""
    path = folder
    *parents, _ = name.split("/")
    for part in parents:
        path /= part
        if path.is_symlink():
            return Standing(obstacle=f"{path.relative_to(folder).as_posix()} is a link, which is not followed")
        if os.path.lexists(path) and not path.is_dir():
            return Standing(obstacle=f"{path.relative_to(folder).as_posix()} is no folder")
    path = folder / name
    if not os.path.lexists(path):
        return Standing()
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return Standing(obstacle="it is a link, which is not followed")
    if stat.S_ISDIR(mode):
        return Standing(obstacle="a folder stands there")
    if not stat.S_ISREG(mode):
        return Standing(obstacle="it is no regular file")
    if path.lstat().st_size > MOST_BYTES:
        return Standing(obstacle=f"it is larger than {MOST_BYTES >> 20} MiB")
    return Standing(read_emitted(path))


def decide_outcomes(folder: Path, base: Tree, new: Tree, rejects: bool = False) -> tuple[Outcome, ...]:
    """What becomes of every file that perfgen emitted or emits; of others nothing is read. ``rejects``: conflicts into .rej files."""
    outcomes = []
    for name in sorted({*base, *new}):
        mine, emitted = read_standing(folder, name), base.get(name)
        filled = dict[bytes, bytes]()
        if name == REPORT and mine.file and emitted:
            filled, empty = read_sections(mine.file.content), read_sections(emitted.content)
            mine = Standing(replace(mine.file, content=fill_sections(mine.file.content, empty)))
        outcome = decide_file(name, mine, emitted, new.get(name), rejects)
        if outcome.content is not None:
            outcome = replace(outcome, content=fill_sections(outcome.content, filled))
        outcomes.append(count_lines(folder, outcome))
    return tuple(outcomes)


def read_sections(page: bytes) -> dict[bytes, bytes]:
    return {match[2]: match[3] for match in SECTIONS.finditer(page)}


def fill_sections(page: bytes, contents: Mapping[bytes, bytes]) -> bytes:
    """What was measured is not the user's edit, and is not lost either."""
    return SECTIONS.sub(lambda match: match[1] + contents.get(match[2], match[3]) + match[4], page)


def keep_measured(page: Emitted, mine: Emitted) -> Emitted:
    """``page`` with what runs have filled in of ``mine``."""
    return replace(page, content=fill_sections(page.content, read_sections(mine.content)))


def decide_file(name: str, mine: Standing, base: Emitted | None, new: Emitted | None, rejects: bool) -> Outcome:
    """``base`` and ``new`` are ``None`` where perfgen had, or has, no such file."""
    if name in OWN and new is not None:
        return replace_own(name, mine, base, new)
    if new is None:
        return drop_file(name, mine, base)
    if mine == Standing():
        if base is not None:
            return Outcome(name=name, kind=Kind.DELETED)
        return Outcome(name=name, kind=Kind.ADDED, content=new.content, executable=new.executable)
    if base == new:
        return Outcome(name=name, kind=Kind.KEPT if is_edited(mine, new) else Kind.SAME)
    if mine.file is None:
        return keep_beside(name, mine.obstacle, new)
    if base is None:
        if mine.file.content == new.content:
            return Outcome(name=name, kind=Kind.SAME)
        return keep_beside(name, "you have a file of this name, and the new plan has one", new)
    return merge_file(name, mine.file, base, new, rejects)


def replace_own(name: str, mine: Standing, base: Emitted | None, new: Emitted) -> Outcome:
    """Of these only the content counts: where git gives them line ends of Windows, or a disk every file the right to be executed,
    nobody changed them."""
    if mine.obstacle:
        return keep_beside(name, mine.obstacle, new)
    if has_content(mine, new):
        return Outcome(name=name, kind=Kind.SAME)
    if mine.file is not None and base is not None and not has_content(mine, base):
        why = f"it is perfgen's and was changed by hand; yours is now {name}{MINE}"
        beside = (f"{name}{MINE}", mine.file.content)
        return Outcome(name=name, kind=Kind.CONFLICT, content=new.content, why=why, beside=beside)
    return Outcome(name=name, kind=Kind.UPDATED if mine.file else Kind.ADDED, content=new.content)


def has_content(mine: Standing, emitted: Emitted) -> bool:
    if mine.file is None:
        return False
    content = emitted.content
    return mine.file.content in (
        content,
        content if is_binary(content) else adopt_line_ends(content, mine.file.content),
    )


def drop_file(name: str, mine: Standing, base: Emitted | None) -> Outcome:
    if mine == Standing():
        return Outcome(name=name, kind=Kind.DELETED)
    return Outcome(name=name, kind=Kind.DROPPED if is_edited(mine, base) else Kind.REMOVED, why=mine.obstacle)


def is_edited(mine: Standing, emitted: Emitted | None) -> bool:
    """Whether what stands there is another content or mode than perfgen's; line ends of Windows are git's doing."""
    if mine.file is None or emitted is None:
        return True
    content = adopt_line_ends(emitted.content, mine.file.content)
    return mine.file != Emitted(content, emitted.executable)


def keep_beside(name: str, why: str, new: Emitted) -> Outcome:
    """What stands there stays; the new version gets another name, for a person to look at."""
    beside = (name.replace("/", "-") + NEW, new.content)
    return Outcome(name=name, kind=Kind.CONFLICT, why=f"{why}; it stays, the new version is {beside[0]}", beside=beside)


def merge_file(name: str, mine: Emitted, base: Emitted, new: Emitted, rejects: bool) -> Outcome:
    old_text, new_text = (adopt_line_ends(side.content, mine.content) for side in (base, new))
    executable = mine.executable if base.executable == new.executable else new.executable
    if mine.content == old_text:
        return Outcome(name=name, kind=Kind.UPDATED, content=new_text, executable=executable)
    if mine.content == new_text:
        content = None if mine.executable == executable else new_text
        return Outcome(
            name=name, kind=Kind.SAME if content is None else Kind.UPDATED, content=content, executable=executable
        )
    if any(is_binary(text) for text in (mine.content, old_text, new_text)):
        return keep_beside(name, "it is no text, and both you and the new plan changed it", new)
    merged = merge_texts(old_text, mine.content, new_text, name)
    if not merged.conflicts:
        return Outcome(name=name, kind=Kind.MERGED, content=merged.content, executable=executable)
    places = f"in {merged.conflicts} place{'s' if merged.conflicts > 1 else ''}"
    if rejects:
        why = f"you and the new plan changed the same lines {places}: yours stay, the others are in {name}{REJECTED}"
        beside = (f"{name}{REJECTED}", merged.rejects)
        return Outcome(
            name=name, kind=Kind.CONFLICT, content=merged.mine, executable=executable, why=why, beside=beside
        )
    why = f"you and the new plan changed the same lines {places}: both stand there, between <<<<<<< and >>>>>>>"
    return Outcome(name=name, kind=Kind.CONFLICT, content=merged.content, executable=executable, why=why)


def count_lines(folder: Path, outcome: Outcome) -> Outcome:
    """With the lines that the file gains and loses."""
    if outcome.content is None and outcome.kind is not Kind.REMOVED:
        return outcome
    standing = read_standing(folder, outcome.name).file
    old, new = standing.content if standing else b"", outcome.content or b""
    added, removed = count_changes(old, new)
    return replace(outcome, added=added, removed=removed)


def count_changes(old: bytes, new: bytes) -> tuple[int, int]:
    """Lines that ``new`` has and ``old`` has not, and the other way round; (0, 0) for what is no text."""
    if is_binary(old) or is_binary(new):
        return 0, 0
    before, after = split_lines(old), split_lines(new)
    common = sum(block.size for block in SequenceMatcher(None, before, after).get_matching_blocks())
    return len(after) - common, len(before) - common


def check_markers(folder: Path, base: Tree) -> None:
    """Raises ``DestinationError`` where a conflict of an earlier update was not settled: markers within markers help nobody."""
    left = [
        name
        for name in sorted(base)
        if (mine := read_standing(folder, name).file) and BEFORE in mine.content and AFTER in mine.content
    ]
    if left:
        raise DestinationError(
            f"{', '.join(left)} of {folder}: conflicts of an earlier update stand there",
            "settle them, then update again",
        )


def list_differences(folder: Path, outcomes: tuple[Outcome, ...]) -> Iterator[str]:
    """Unified diffs of what would be written against what stands there."""
    for outcome in outcomes:
        if outcome.content is None and outcome.kind is not Kind.REMOVED:
            continue
        standing = read_standing(folder, outcome.name).file
        old, new = standing.content if standing else b"", outcome.content or b""
        if outcome.name.startswith(FOLDER) or is_binary(old) or is_binary(new):
            continue
        old_lines, new_lines = (
            [
                line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                for line in decode_lines(split_lines(text))
            ]
            for text in (old, new)
        )
        yield from unified_diff(old_lines, new_lines, f"{outcome.name} (there)", f"{outcome.name} (new)")
