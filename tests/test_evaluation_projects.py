"""What an emitted project says of its model: the same on two processes as on one, and what it keeps is what it evaluated."""

from __future__ import annotations

import json

import pytest
from test_parallel_projects import inputs, make, on_cpu, report, run, sharded  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow


def read_metrics(folder) -> list[dict]:
    return [{name: row[name] for name in row if name != "runtime"} for row in report(folder)["evaluations"]]


def test_two_processes_evaluate_as_one(inputs, tmp_path):  # noqa: F811
    """7 rows do not divide by 2 processes of 4 rows: no row may count twice."""
    folders = {
        "one": on_cpu(make(inputs, tmp_path / "one", None, "1xa100-sxm-80gb", parallelism="single")),
        "two": on_cpu(make(inputs, tmp_path / "two", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp")),
    }
    metrics = {}
    for name, folder in folders.items():
        config = folder / "config.yaml"
        lines = config.read_text().splitlines()
        values = {"eval_data:": "eval_data: 0.9", "eval_rows:": "eval_rows: 7"}
        config.write_text("\n".join(values.get(line.split(" ")[0], line) for line in lines))
        run(folder, "--eval_steps", "3", "--save_steps", "3", gpus=False)
        metrics[name] = read_metrics(folder)
        assert report(folder)["eval_rows"] == 7
        assert [row["step"] for row in metrics[name]] == [0, 3, 6]
    for one, two in zip(metrics["one"], metrics["two"], strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    losses = [row["loss"] for row in metrics["two"]]
    assert report(folders["two"])["kept_step"] == metrics["two"][losses.index(min(losses[1:]))]["step"]
    state = json.loads((folders["two"] / "runs/checkpoint-6/trainer_state.json").read_text())
    assert state["best_metric"] == pytest.approx(min(losses[1:]))
