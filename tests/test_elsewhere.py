"""Names from guides and other tools under which nothing is decided here."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from generator.cli import perfgen
from generator.errors import UsageError
from generator.techniques.base import list_axes
from generator.techniques.elsewhere import find_named, load_named

KNOWN = {t.id: t for axis in list_axes() for t in axis.members}
SMALL = ["--model", "examples/models/smollm2-135m.json", "--hardware", "1xrtx-4090"]


def test_no_name_stands_twice_or_is_a_technique_s():
    names = [name for row in load_named() for name in row.names]
    assert len(names) == len(set(names)) > 100
    assert not set(names) & ({t.name for t in KNOWN.values()} | set(KNOWN))


@pytest.mark.parametrize("row", load_named(), ids=lambda row: row.names[0])
def test_what_does_it_here_exists(row):
    assert set(row.here) <= set(KNOWN)
    assert row.source.startswith("https://") and not row.why.endswith(".")


@pytest.mark.parametrize("name", ["apex", "tensor parallel", "DeepSpeed", "neftune"])
def test_why_not_answers_for_a_name_of_the_guides(name):
    done = CliRunner().invoke(perfgen, ["why-not", name, *SMALL, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["taken"] is False and find_named(name).why in answer["why"]


def test_where_nothing_fits_it_is_answered_too():
    done = CliRunner().invoke(
        perfgen,
        ["why-not", "bettertransformer", "--model", "examples/models/llama-3.1-8b.json", "--hardware", "1xrtx-4090"],
    )
    assert done.exit_code == 0 and "attention=sdpa" in done.output


def test_a_name_that_nobody_knows_is_an_error():
    done = CliRunner().invoke(perfgen, ["why-not", "warp-drive", *SMALL])
    assert isinstance(done.exception, UsageError) and "there is no technique warp-drive" in str(done.exception)


def test_what_the_plan_takes_is_taken_under_another_name_too():
    done = CliRunner().invoke(perfgen, ["why-not", "amp", *SMALL, "--json"])
    answer = json.loads(done.output)
    assert answer["taken"] is True and answer["why"].endswith("this plan takes precision=bf16")
