"""The run's section of report.html: what run.json says, and nothing where it says nothing."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from generator.run.figures import RunFigures
from generator.run.report import add_run

PAGE = "<h1>x</h1>\n<!-- run:begin -->\nold\n<!-- run:end -->\n<p>y</p>"
RUN = {
    "schema": 1,
    "tokens_per_second": 1.0,
    "peak_memory_gib": 1.0,
    "versions": {},
    "step_seconds": 1.0,
    "tokens_per_step": 1.0,
    "first_step_seconds": 1.0,
    "steps": [],
    "losses": [3.0, 2.0],
    "resumed_from": 0,
    "finished_step": 2,
    "processes": 1,
}
EVALUATED = {
    "evaluations": [{"step": 0, "loss": 3.25, "accuracy": 0.5}, {"step": 2, "loss": 2.125, "accuracy": 0.75}],
    "eval_rows": 4,
    "kept_step": 2,
    "confusion": {"labels": ["<b>", "c"], "counts": [[3, 1], [0, 4]]},
    "answers": [{"prompt": "<script>", "expected": "e", "before": None, "after": "late"}],
}


def write_page(tmp_path, **more) -> str:
    page = tmp_path / "report.html"
    page.write_text(PAGE)
    for _ in range(2):  # the second time it replaces the first
        add_run(page, RunFigures.model_validate(RUN | more))
    return page.read_text()


def test_evaluations_confusion_and_answers(tmp_path):
    text = write_page(tmp_path, **EVALUATED)
    assert "old" not in text and text.count("On 4 held-out rows.") == 1
    assert "2 (kept)" in text and "0 (kept)" not in text
    assert all(value in text for value in ("3.25", "2.125", "0.75", "&lt;b&gt;", "&lt;script&gt;", "late"))
    assert "<script>" not in text and "perplexity" not in text


def test_mistakes_of_many_labels(tmp_path):
    text = write_page(tmp_path, **EVALUATED | {"mistakes": [{"label": "<i>", "answer": "b", "count": 3}]})
    assert "<td>&lt;i&gt;</td><td>b</td>" in text and "was taken for</th><th>times" in text


def test_nothing_held_out(tmp_path):
    text = write_page(tmp_path)
    assert "Nothing was held out." in text and "<th>after</th>" not in text


@pytest.mark.parametrize("counts", [[[1, 2], [3]], [[1, 2]], [[1, 2, 3], [4, 5, 6]]])
def test_a_table_that_is_not_square_is_no_run(counts):
    """A traceback of `perfgen report`."""
    with pytest.raises(ValidationError, match="a line and a column for each"):
        RunFigures.model_validate(RUN | {"confusion": {"labels": ["a", "b"], "counts": counts}})
