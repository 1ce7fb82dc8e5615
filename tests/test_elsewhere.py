"""Names from guides and other tools under which nothing is decided here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from generator import pipeline
from generator.case.request import Request
from generator.case.strategies import GATHER, RING
from generator.cli import perfgen
from generator.cost.activations import compute_block_activations
from generator.cost.of_case import build_cost_model
from generator.cost.shape import build_shape
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


@pytest.mark.parametrize(
    "name", ["apex", "tensor parallel", "DeepSpeed", "neftune", "mxfp8", "gradient release", "tiled-mlp", "fsdp-qlora"]
)
def test_why_not_answers_for_a_name_of_the_guides(name):
    done = CliRunner().invoke(perfgen, ["why-not", name, *SMALL, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["taken"] is False and find_named(name).why in answer["why"]


@pytest.mark.parametrize(
    ("name", "train", "layer_gib"),
    [("llama-3.1-8b", "full", (4.2, 34)), ("llama-3.1-70b", "lora", (8.7, 70))],
)
def test_what_is_said_of_ring_attention_is_what_the_cost_model_says(name, train, layer_gib):
    """Of a step, and of a layer in its backward pass, where 8 devices share a sequence of 128k tokens and of 1M."""
    case, layout = ("parallelism", "context-fsdp2"), {"global_batch": 8, "seq_len": 131072, "task": "causal-lm"}
    request = Request(
        model=f"examples/models/{name}.json",
        hardware="8xh100-sxm-80gb",
        train=train,
        pins=(case,),
        offline=True,
        **layout,
    )
    plan = pipeline.plan_request(request).plan
    model, cost = plan.case.model, build_cost_model(plan.case)
    why = find_named("ring-attention").why
    for seq_len, gib, share, other in zip((131072, 1 << 20), (0.5, 4), (1.5, 0.3), layer_gib, strict=True):
        gathered = replace(plan.best.execution, seq_len=seq_len)
        seconds = [cost.estimate(replace(gathered, sequence_form=form)).step_seconds for form in (GATHER, RING)]
        assert 0 < 100 * (1 - seconds[1] / seconds[0]) < share and f"{share:g} %" in why
        shape = build_shape(model, "causal-lm", 0)
        assert 2 * 2 * shape.key * seq_len == gib * 2**30  # keys and values, in bf16
        beside = compute_block_activations(shape, gathered).peak * seq_len / gathered.cp / 2**30
        assert beside == pytest.approx(other, rel=0.02) and f"{other:g}" in why


def test_where_nothing_fits_it_is_answered_too():
    done = CliRunner().invoke(
        perfgen,
        ["why-not", "bettertransformer", "--model", "examples/models/llama-3.1-8b.json", "--hardware", "1xrtx-4090"],
    )
    assert done.exit_code == 0 and "attention=sdpa" in done.output


def test_a_name_that_nobody_knows_is_an_error():
    done = CliRunner().invoke(perfgen, ["why-not", "warp-drive", *SMALL])
    assert isinstance(done.exception, UsageError) and "there is no technique warp-drive" in str(done.exception)


def test_a_name_in_capitals_is_proposed_as_it_is_written():
    done = CliRunner().invoke(perfgen, ["why-not", "ADAFACTOR", *SMALL])
    assert (
        isinstance(done.exception, UsageError) and "did you mean adafactor" in f"{done.exception} {done.exception.hint}"
    )


def test_what_the_plan_takes_is_taken_under_another_name_too():
    done = CliRunner().invoke(perfgen, ["why-not", "amp", *SMALL, "--json"])
    answer = json.loads(done.output)
    assert answer["taken"] is True and answer["why"].endswith("this plan takes precision=bf16")
