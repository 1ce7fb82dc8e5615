"""standstill.py in projects: a process that hangs in its data, in a backward pass or in a save is named, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_loop_projects import SAVES, describe_run, make, run_all
from test_loop_projects import inputs as inputs

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

HANGS = """
import os
import sys
import time

import torch.distributed.checkpoint as dcp
import transformers
from transformers.trainer_callback import CallbackHandler

import heartbeat
import standstill

heartbeat.BEAT_SECONDS, standstill.STILL_SECONDS, standstill.TIMES = 0.2, 2.0, 0
WHERE, RANK, late = open("where").read().split()[0], int(open("where").read().split()[1]), []
late += [0] * (WHERE == "weights")


def hang():
    end = time.monotonic() + 60
    while "in hang" not in "".join(standstill.STANDSTILL) and time.monotonic() < end:
        time.sleep(0.05)


def hang_once(where):
    if late == [0 if where == "weights" else 3] and where == WHERE and int(os.environ["RANK"]) == RANK:
        late.append(1)
        hang()


def patch(owner, name, where):
    function = getattr(owner, name)

    def patched(*arguments, **keywords):
        hang_once(where)
        return function(*arguments, **keywords)

    setattr(owner, name, patched)


def on_step_end(handler, args, state, control):
    late.extend([3] * (state.global_step == 3))
    return end(handler, args, state, control)


def on_train_begin(handler, args, state, control):
    for parameter in handler.model.parameters():
        parameter.register_hook(lambda gradient: hang_once("hook"))
    return begin(handler, args, state, control)


end, begin = CallbackHandler.on_step_end, CallbackHandler.on_train_begin
CallbackHandler.on_step_end, CallbackHandler.on_train_begin = on_step_end, on_train_begin
patch(transformers, "default_data_collator", "data")
patch(transformers.PreTrainedModel, "save_pretrained", "save")
patch(transformers.AutoModelForCausalLM, "from_pretrained", "weights")
patch(dcp.FileSystemWriter, "write_data", "save")
"""
PLACES = {  # form, in what, rank: on the way there
    ("ddp", "data", 1): "Trainer.get_batch_samples > ",
    ("ddp", "hook", 1): "Accelerator.backward > ",
    ("ddp", "save", 0): "Trainer._save_checkpoint > ",
    ("pipeline", "data", 1): "Loop.train_epoch (loop.py:",
    ("pipeline", "hook", 0): "stage_backward > ",
    ("pipeline", "save", 1): "save_states (divided_states.py:",
}


def prepare(inputs, folder: Path, form: str, where: str, rank: int) -> Path:
    project = make(inputs, folder, form, 2, "dense")
    text = (project / "train.py").read_text()
    assert "default_data_collator" in text and "AutoModelForCausalLM" in text
    (project / "train.py").write_text(f"import hangs\n{text}")
    (project / "hangs.py").write_text(HANGS)
    (project / "where").write_text(f"{where} {rank}")
    return project


def test_a_process_that_hangs_is_named_with_the_way_to_where_it_is(inputs, tmp_path):
    runs = []
    for form, where, rank in PLACES:
        project = prepare(inputs, tmp_path / f"{form}-{where}", form, where, rank)
        runs.append(describe_run(project, 2, *SAVES, "--logging_steps", "1"))
    for (form, where, rank), ended in zip(PLACES, run_all(tmp_path, runs), strict=True):
        output = (tmp_path / f"{form}-{where}" / "log-0").read_text()
        assert ended["codes"] == [0, 0] and ended["finished"], output
        _, _, said = output.partition("No process has finished anything for ")
        first, way, other, its_way = said.splitlines()[1:5]
        assert first.startswith(f"  rank {rank} (") and first.endswith(": in hang (hangs.py:21)"), said
        assert "main (train.py:" in way and f"{PLACES[form, where, rank]}" in way, said
        assert other.startswith(f"  rank {1 - rank} (") and "): waits for others in " in other, said
        assert "main (train.py:" in its_way, said


@pytest.mark.parametrize("form", ["ddp", "pipeline"])
def test_a_process_that_hangs_in_its_weights_is_named(form, inputs, tmp_path):
    """Before the training begins; the other waits for it in the first collective."""
    project = prepare(inputs, tmp_path / "p", form, "weights", 1)
    (ended,) = run_all(tmp_path, [describe_run(project, 2, "--max_steps", "2")])
    output = (project / "log-0").read_text()
    assert ended["codes"] == [0, 0] and ended["finished"], output
    before = "The training has not begun, and no process has left its place for "
    reports = [said.splitlines()[1:4] for said in output.split(before)[1:]]
    named = [lines for lines in reports if lines[0].startswith("  rank 1 (") and ": in hang (hangs.py:" in lines[0]]
    assert named and "main (train.py:" in named[0][1] and "  rank 0 (" in named[0][2], output
