"""The next token: chosen as `generate` would, by what a request may ask."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def decoding(load):
    load("serving/sampling", "sampling")
    return load("serving/decoding", "decoding")


LOGITS = np.array([0.0, 3.0, 2.0, -5.0], np.float32)


def draw(decoding, seed: int = 0, before=(), times: int = 400, logits=LOGITS, **more) -> list[int]:
    random, sampling = np.random.default_rng(seed), decoding.Sampling(1, **more)
    return [decoding.choose_token(logits, sampling, random, list(before)) for _ in range(times)]


@pytest.mark.parametrize(("asked", "taken"), [(0, 0), (5e-324, 0), (1e-40, 0), (2e-5, 2e-5), (2, 2)])
def test_a_temperature_is_one_in_32_bits(load, asked, taken):
    assert load("serving/sampling", "sampling").Sampling(3, temperature=asked).temperature == taken


def test_draws_follow_the_seed_and_the_share(decoding):
    assert draw(decoding, temperature=1.0) == draw(decoding, temperature=1.0) != draw(decoding, 1, temperature=1.0)
    shares = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert draw(decoding, temperature=1.0).count(1) / 400 == pytest.approx(shares[1], abs=0.08)


@pytest.mark.parametrize(
    "asked, kept",
    [
        ({}, {0, 1, 2}),
        ({"top_p": 0.8}, {1, 2}),
        ({"top_p": 0.6}, {1}),
        ({"top_p": 1e-6}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 9}, {0, 1, 2}),
        ({"min_p": 0.2}, {1, 2}),
        ({"min_p": 1.0}, {1}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 5e-324}, {1}),
        ({"temperature": 0.0, "repetition_penalty": 2.0, "before": [1, 1]}, {2}),
        ({"temperature": 0.0, "repetition_penalty": 1.2, "before": [1]}, {1}),
    ],
)
def test_what_may_be_drawn(decoding, asked, kept):
    drawn = set(draw(decoding, **{"temperature": 1.0} | asked))
    assert drawn == kept or (drawn == kept | {3} and not asked)


def test_a_penalty_is_that_of_transformers(decoding):
    torch = pytest.importorskip("torch")
    from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32) * 3
    before = [3, 999, 3, int(logits.argmax())]
    upstream = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.5), TopKLogitsWarper(40), TopPLogitsWarper(0.7)]
    )(torch.tensor([before]), torch.tensor(logits)[None].clone())
    allowed = set(upstream[0].isfinite().nonzero().flatten().tolist())
    asked = {"temperature": 1.0, "repetition_penalty": 1.5, "top_k": 40, "top_p": 0.7}
    drawn = set(draw(decoding, before=before, times=4000, logits=logits, **asked))
    assert drawn <= allowed and len(drawn) > 0.8 * len(allowed)


def test_logits_that_are_no_numbers_are_an_error(decoding):
    with pytest.raises(ValueError):
        draw(decoding, logits=np.full(4, np.nan, np.float32), temperature=1.0)
