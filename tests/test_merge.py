"""Three versions into one: what git's own merge gives, where it is installed, and what holds for all of them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generator.emit.merge import adopt_line_ends, is_binary, merge_texts, split_lines

BASE = b"one\ntwo\nthree\nfour\nfive\nsix\n"
patient = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n"]), max_size=12)
TEXTS = st.builds(lambda lines, last: b"".join(lines) + last, LINES, st.sampled_from([b"", b"e"]))


def test_edits_on_other_lines_are_all_there():
    merged = merge_texts(BASE, BASE.replace(b"one", b"ONE"), BASE.replace(b"six", b"SIX"))
    assert merged.content == b"ONE\ntwo\nthree\nfour\nfive\nSIX\n" and not merged.conflicts


def test_the_same_edit_on_both_sides_is_no_conflict():
    edited = BASE.replace(b"three", b"3")
    assert merge_texts(BASE, edited, edited).content == edited


def test_both_sides_of_a_conflict_stand_between_markers():
    merged = merge_texts(BASE, BASE.replace(b"three", b"mine"), BASE.replace(b"three", b"new"), "a.py")
    marked = b"<<<<<<< before updating\nmine\n=======\nnew\n>>>>>>> after updating\n"
    assert merged.content == b"one\ntwo\n" + marked + b"four\nfive\nsix\n" and merged.conflicts == 1
    assert merged.mine == BASE.replace(b"three", b"mine")
    assert b"--- a.py (yours)\n+++ a.py (new)\n" in merged.rejects and b"\n-mine\n+new\n" in merged.rejects


def test_edits_of_neighbouring_lines_are_a_conflict():
    assert merge_texts(BASE, BASE.replace(b"two", b"2"), BASE.replace(b"three", b"3")).conflicts == 1


def test_no_newline_at_the_end():
    merged = merge_texts(b"a\nb", b"a\nmine", b"a\nnew")
    assert merged.content == b"a\n<<<<<<< before updating\nmine\n=======\nnew\n>>>>>>> after updating\n"
    assert merged.mine == b"a\nmine" and b"No newline at end of file" in merged.rejects
    assert merge_texts(b"a\nb\nc", b"A\nb\nc", b"a\nb\nc").content == b"A\nb\nc"


def test_line_ends_of_windows_stay():
    mine = BASE.replace(b"one", b"ONE").replace(b"\n", b"\r\n")
    base, new = (adopt_line_ends(text, mine) for text in (BASE, BASE.replace(b"six", b"SIX")))
    assert merge_texts(base, mine, new).content == b"ONE\r\ntwo\r\nthree\r\nfour\r\nfive\r\nSIX\r\n"
    assert adopt_line_ends(BASE, b"mixed\r\nends\n") == BASE == adopt_line_ends(BASE, b"")


def test_bytes_that_are_no_utf_8_are_merged_too():
    mine = BASE.replace(b"one", b"\xe9\xff")
    merged = merge_texts(BASE, mine, BASE.replace(b"one", b"1"))
    assert b"\xe9\xff\n" in merged.content and b"-\xe9\xff\n" in merged.rejects
    assert is_binary("text".encode("utf-16")) and not is_binary(mine)


@patient
@given(TEXTS)
def test_lines_joined_are_the_text(text):
    assert b"".join(split_lines(text)) == text


@patient
@given(TEXTS, TEXTS)
def test_what_only_one_side_changed_is_taken(base, other):
    assert merge_texts(base, other, base).content == other == merge_texts(base, base, other).content
    assert merge_texts(base, other, other).content == other


@patient
@given(TEXTS, TEXTS, TEXTS)
def test_every_line_that_either_side_added_is_there(base, mine, new):
    """Lines that stand in one version only, so that none is in the result for another's sake."""
    mine, new = (b"".join(side + line for line in split_lines(text)) for side, text in ((b"m", mine), (b"n", new)))
    merged = merge_texts(base, mine, new)
    for line in {*split_lines(mine), *split_lines(new)}:
        assert line.rstrip(b"\r\n") in merged.content


EDIT = st.tuples(st.integers(0, 19), st.sampled_from(("change", "drop", "add")))


def edit_lines(edits, word: bytes) -> bytes:
    """Twenty different lines, some of them changed, dropped or followed by another."""
    lines = [b"%d\n" % number for number in range(20)]
    for at, how in edits:
        own = b"%s %d\n" % (word, at)
        lines[at] = {"change": own, "drop": b"", "add": b"%d\n" % at + own}[how]
    return b"".join(lines)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed: its merge is what this is compared with")
@patient
@given(st.lists(EDIT, max_size=4), st.lists(EDIT, max_size=4))
def test_git_merges_the_same(tmp_path_factory, mine_edits, new_edits):
    """On lines that are all different there is one way to align them. (git cuts one conflict into several where it can.)"""
    folder = tmp_path_factory.mktemp("merge")
    texts = {"mine": edit_lines(mine_edits, b"mine"), "base": edit_lines((), b""), "new": edit_lines(new_edits, b"new")}
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    merged = merge_texts(texts["base"], texts["mine"], texts["new"])
    done = subprocess.run(["git", "merge-file", "-p", "mine", "base", "new"], cwd=folder, capture_output=True)
    assert bool(done.returncode) == bool(merged.conflicts)
    if not merged.conflicts:
        assert done.stdout == merged.content
