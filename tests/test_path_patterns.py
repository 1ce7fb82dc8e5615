"""Patterns of a stranger's README: matched as fsspec does, and never for long."""

from __future__ import annotations

import re
import time
from random import Random

import pytest

from generator.errors import SourceError
from generator.inputs.hub_data import read_front_matter
from generator.inputs.path_patterns import matches

PIECES = ["a", "b", "*", "*", "?", "/", "/", "**", "[ab]", "a*b", ".", "-", "[*]", "[a-c]"]


def test_patterns_match_as_those_of_fsspec():
    translate = pytest.importorskip("fsspec.utils").glob_translate
    random, matched = Random(3), 0
    for _ in range(4000):
        pattern = "".join(random.choices(PIECES, k=random.randrange(1, 8)))
        path = "/".join(
            "".join(random.choices("abc.-", k=random.randrange(1, 5))) for _ in range(random.randrange(1, 4))
        )
        try:
            wanted = re.compile(translate(pattern))
        except (ValueError, re.error):
            with pytest.raises((ValueError, re.error)):
                matches(pattern, path)
            continue
        assert matches(pattern, path) == bool(wanted.match(path)), (pattern, path)
        matched += matches(pattern, path)
    assert matched > 50


def test_no_pattern_takes_long():
    started = time.process_time()
    assert not matches("*a" * 40 + "*b", "a" * 250)
    assert not matches("**/" * 30 + "b", "a/" * 100 + "a")
    assert time.process_time() - started < 1


def test_anchors_that_stand_for_a_billion_values_are_refused():
    pytest.importorskip("huggingface_hub")
    rows = [f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]" for p, c in zip("abcdefgh", "bcdefghi", strict=True)]
    text = "\n".join(["---", "a: &a [x, x]", *rows, "configs: [{config_name: *i}]", "---", ""])
    with pytest.raises(SourceError, match="more than 1,000,000 values"):
        read_front_matter("o/d", "README.md", text)
    assert read_front_matter("o/d", "README.md", "---\na: &a [x]\nb: [*a, *a]\n---\n")["b"] == [["x"], ["x"]]
