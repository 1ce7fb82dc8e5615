"""A project learns what the libraries' own Trainer learns of the same rows: losses, gradient norms, rates, evaluations."""

from __future__ import annotations

import json
import os
import signal
import traceback
from pathlib import Path

import pytest

pytest.importorskip("trl")
from stock_losses import Draw, compare, draw

pytestmark = pytest.mark.slow
SECONDS = 240
SEEDS = range(100, 124)


def in_a_process(place: Path, of: Draw) -> list[str]:
    """A project's modules are named alike: each is imported in a process of its own."""
    found, log = place / "found.json", place / "log"
    pid = os.fork()
    if not pid:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.alarm(SECONDS)
        try:
            found.write_text(json.dumps(compare(place / "made", of)))
        except BaseException as error:
            traceback.print_exc()
            print(error)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert found.exists(), log.read_text(errors="replace")[-2000:]
    return json.loads(found.read_text())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_training_is_that_of_the_library(seed, tmp_path):
    of = draw(seed)
    assert in_a_process(tmp_path, of) == [], of.describe()


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
