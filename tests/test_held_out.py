"""--eval: a share, a file, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from generator.case.held_out import choose_share, count_held_rows, read_held_out
from generator.case.request import Request
from generator.emit.plan_document import ABSENT
from generator.errors import SourceError, UsageError
from generator.inputs.data_files import read_data
from generator.pipeline import document_request
from generator.show.terminal import list_value_lines

SMALL = str(Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json")


def write_rows(path, *columns: str):
    path.write_text("\n".join(json.dumps(dict.fromkeys(columns, "some words")) for _ in range(10)))
    return str(path)


def test_the_default_a_share_and_none():
    assert read_held_out(Request(), None).share is None
    assert read_held_out(Request(eval="0.1"), None).share == 0.1
    assert read_held_out(Request(eval="none"), None) is None
    assert read_held_out(Request(mode="infer"), None) is None


@pytest.mark.parametrize(("rows", "held"), [(5, 1), (90, 9), (200, 20), (999, 20), (1500, 30), (10**6, 500)])
def test_of_a_small_set_more_than_a_row_is_held_out(rows, held):
    assert count_held_rows(rows, None) == held <= max(1, rows * choose_share(rows))


def test_few_held_out_rows_are_said(tmp_path):
    lines = [json.dumps({"prompt": f"a b {n}", "completion": "c d"}) for n in range(90)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    words = {"hardware": "cpu:4", "task": "sft", "data": str(tmp_path / "d.jsonl"), "tokenizer": str(tmp_path)}
    (tmp_path / "tokenizer.json").write_text("{}")
    few = document_request(Request(model=SMALL, **words))
    assert few.config.eval_data == 0.1
    notes = [note.text for note in few.notes if note.kind == "evaluation"]
    assert len(notes) == 1 and notes[0].startswith(f"only {few.evaluation.rows} row"), notes
    asked = document_request(Request(model=SMALL, eval="0.1", max_steps=5, **words))
    assert not [note for note in asked.notes if note.kind == "evaluation"]
    assert list_value_lines(asked)[0].endswith("max_steps 5, eval 0.1")
    assert not any("epochs" in line for line in list_value_lines(asked)), "not in force"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(eval="1.5"), "no share"),
        (Request(eval="0"), "no share"),
        (Request(eval="nan"), "no share"),
        (Request(eval="missing.jsonl"), "neither a file, nor a share"),
        (Request(eval="x" * 5000), "File name too long"),
        (Request(eval="none", early_stopping=2), "needs an evaluation"),
    ],
)
def test_what_is_refused(request_, words):
    with pytest.raises(UsageError, match=words):
        read_held_out(request_, None)


def test_a_file_of_the_form_of_the_data(tmp_path):
    data = read_data(write_rows(tmp_path / "a.jsonl", "prompt", "completion"), task="sft")
    held = read_held_out(Request(task="sft", eval=write_rows(tmp_path / "b.jsonl", "prompt", "completion")), data)
    assert held.file.rows == 10
    other = write_rows(tmp_path / "c.jsonl", "text")
    with pytest.raises(UsageError, match="of another form"):
        read_held_out(Request(task="sft", eval=other), data)


def test_a_file_that_cannot_be_read_is_named_by_its_own_option(tmp_path):
    data = read_data(write_rows(tmp_path / "a.jsonl", "prompt", "completion"), task="sft")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(SourceError, match=r"^--eval .* holds no usable row"):
        read_held_out(Request(task="sft", eval=str(tmp_path / "empty.jsonl")), data)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(SourceError, match=r"^--eval .* a pipe or a device"):
        read_held_out(Request(task="sft", eval=str(tmp_path / "pipe.jsonl")), data)


def test_labels_of_a_file_to_evaluate_on(tmp_path):
    """Some of them may be missing there; one that nothing teaches is refused before anything is written."""

    def write(name: str, *labels: str) -> str:
        rows = [json.dumps({"text": f"words {n}", "label": label}) for n, label in enumerate(labels * 9)]
        (tmp_path / name).write_text("\n".join(rows))
        return str(tmp_path / name)

    (tmp_path / "tokenizer.json").write_text("{}")
    words = {"hardware": "cpu:4", "task": "text-classification", "tokenizer": str(tmp_path), "global_batch": 4}
    words |= {"model": SMALL, "data": write("d.jsonl", "a", "b", "c")}
    assert document_request(Request(eval=write("one.jsonl", "b"), **words)).evaluation.rows == 9
    with pytest.raises(SourceError, match=r"--eval .*new.jsonl: the label 'x' is not in the data"):
        document_request(Request(eval=write("new.jsonl", "a", "x"), **words))


def test_a_global_batch_is_left_to_train_on_and_what_is_not_evaluated_is_said(tmp_path):
    lines = [json.dumps({"prompt": f"a b {n}", "completion": "c d"}) for n in range(34)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    words = {"hardware": "cpu:4", "task": "sft", "data": str(tmp_path / "d.jsonl"), "tokenizer": str(tmp_path)}
    (tmp_path / "tokenizer.json").write_text("{}")
    document = document_request(Request(model=SMALL, global_batch=32, **words))
    assert document.evaluation.rows == document.config.eval_rows == 2
    for share in (None, "0.5"):
        document = document_request(Request(model=SMALL, global_batch=34, eval=share, **words))
        assert document.evaluation is ABSENT and document.config.eval_data is None
        (note,) = [note.text for note in document.notes if note.kind == "evaluation"]
        assert note.startswith("nothing is held out and nothing evaluated: 34 sequences")
    with pytest.raises(UsageError, match="--early-stopping 2 needs an evaluation, and of 34 sequences"):
        document_request(Request(model=SMALL, global_batch=34, early_stopping=2, **words))
