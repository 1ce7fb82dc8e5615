"""A project learns what the libraries' own Trainer learns of the same rows: losses, gradient norms, rates, evaluations."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
from stock_losses import draw, write_differences

pytestmark = pytest.mark.slow
SEEDS = range(100, 124)


@pytest.fixture(scope="module")
def forks():
    """Of a process that has the libraries and has computed nothing: one of this process, which may have, would wait for its OpenMP threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stock_losses", "trl", "transformers.trainer"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the server has no other
        patch.chdir(Path(__file__).parent)
        yield context


def in_a_process(forks, place: Path, seed: int) -> list[str]:
    """A project's modules are named alike: each is imported in a process of its own."""
    process = forks.Process(target=write_differences, args=(place, seed))
    process.start()
    process.join()
    found, log = place / "found.json", place / "log"
    assert found.exists(), log.read_text(errors="replace")[-2000:]
    return json.loads(found.read_text())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_training_is_that_of_the_library(forks, seed, tmp_path):
    assert in_a_process(forks, tmp_path, seed) == [], draw(seed).describe()


def test_the_draws_have_every_task_packing_and_loss_with_and_without_smoothing():
    draws = [draw(seed) for seed in SEEDS]
    assert {(of.task, of.packing) for of in draws} >= {
        ("causal-lm", "packed"),
        *(("sft", name) for name in ("padded", "flattened", "shared-prefix", "group-by-length")),
        *(("text-classification", name) for name in ("padded", "group-by-length")),
    }
    smoothed = {(of.task, "label_smoothing_factor" in of.flags) for of in draws if of.parts > 1}
    assert len(smoothed) == 6, smoothed
    assert {of.loss for of in draws if of.task == "causal-lm"} == {"plain", "chunked"}
