"""`perfgen plan --answers` writes what plain Copier can render, or is refused."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import yaml

from generator.case.request import Request
from generator.case.tasks import find_task, list_tasks
from generator.case.workload import MODES
from generator.emit.document import dump_answers
from generator.emit.render import render
from generator.errors import PerfgenError
from generator.pipeline import document_request

MODEL = str(Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json")
ROWS = {
    "causal-lm": {"text": "plain words " * 400},
    "sft": {"prompt": "count", "completion": "one two"},
    "text-classification": {"text": "good", "label": 1},
}


@pytest.mark.parametrize(("task", "mode", "has_data"), product(list_tasks(), MODES, (True, False)))
def test_answers_are_rendered_or_refused(tmp_path, task, mode, has_data):
    data = tmp_path / "d.jsonl"
    rows = [
        ROWS.get(task, {"path": "a.wav"}) | ({"label": n % 2} if task == "text-classification" else {})
        for n in range(64)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = json.loads(Path(MODEL).read_text())
    if task == "text-classification" and mode == "infer":  # one that was trained for its labels
        config |= {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    request = Request(
        model="org/model",
        config=str(tmp_path / "config.json"),
        task=task,
        mode=mode,
        data=str(data) if has_data and mode == "train" else None,
        hardware="cpu:4",
        seq_len=64,
        offline=True,
    )
    needs_head = task == "token-classification"  # which the model has not
    impossible = find_task(task).reads_media or needs_head or (mode == "train" and not find_task(task).trained)
    try:
        answers = dump_answers(document_request(request, for_project=True))
    except PerfgenError as error:
        assert ((mode == "train" and not has_data) or impossible) and error.hint, error
        return
    assert (mode == "infer" or has_data) and not impossible
    assert render(yaml.safe_load(answers)["plan"], tmp_path / "p")
