"""The record of what perfgen wrote: the same bytes for the same files, and nothing else is believed."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generator.emit.emitted import BESIDE, FILE, Emitted, add_record, pack_tree, read_record, unpack_tree
from generator.errors import SourceError

TREE = {
    "train.py": Emitted(b"print()\r\n\xff"),
    "run.sh": Emitted(b"#!/bin/sh\n", True),
    "sample/a b.txt": Emitted(b""),
}
NAMES = st.lists(st.from_regex(r"[a-z]{1,4}", fullmatch=True), min_size=1, max_size=3).map("/".join)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, st.builds(Emitted, st.binary(max_size=50), st.booleans()), max_size=5))
def test_what_is_packed_comes_back(tree):
    assert unpack_tree(pack_tree(tree)) == tree


def test_the_order_does_not_matter():
    assert pack_tree(TREE) == pack_tree(dict(reversed(TREE.items())))


def test_a_project_without_a_record_has_none(tmp_path):
    assert read_record(tmp_path) is None


def store(folder, packed):
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_bytes(packed)


@pytest.mark.parametrize("at", range(0, len(pack_tree(TREE)), 7))
def test_a_changed_byte_is_seen_or_changes_nothing(tmp_path, at):
    packed = bytearray(pack_tree(TREE))
    packed[at] ^= 0x55
    store(tmp_path, bytes(packed))
    try:
        assert read_record(tmp_path) == TREE  # a date, or a version that nobody reads
    except SourceError as error:
        assert "git checkout" in str(error)


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_part_of_it_is_refused(tmp_path, cut):
    store(tmp_path, pack_tree(TREE)[:cut])
    with pytest.raises(SourceError, match="damaged or was changed"):
        read_record(tmp_path)


def test_files_put_into_it_by_hand_are_refused():
    buffer = io.BytesIO(pack_tree(TREE))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("mine.py", "x")
    with pytest.raises(ValueError, match="not those that perfgen packed"):
        unpack_tree(buffer.getvalue())


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", ".perfgen/x", ".git/hooks/pre-commit", "a\\b", "c:x", "a//b", "./a"]
)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(ValueError, match="no project has a file"):
        unpack_tree(pack_tree({name: Emitted(b"x")}))


def test_the_record_is_of_what_stands_beside_it():
    tree = add_record(TREE)
    assert unpack_tree(tree[FILE].content) == TREE and tree.keys() - TREE.keys() == {FILE, *BESIDE}
