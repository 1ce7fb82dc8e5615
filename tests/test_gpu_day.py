"""The measurements for a machine with a GPU are costed by the names that the cost model has today."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_day
from benchmarks.gpu.forks import run_rows
from benchmarks.gpu.measurements import config_of, list_measurements, shrink, spread_kinds
from benchmarks.gpu.predict import Predictor, compare
from benchmarks.gpu.smoke import CASES, list_pins, list_prepared, name_row, prepare_smoke

H200 = {
    "device": "cuda",
    "name": "NVIDIA H200",
    "memory_bytes": 150754820096,
    "host_memory_bytes": 128 << 30,
    "cores": 16,
    "versions": {},
}


def predicted_rows(predictor: Predictor, tiny: bool):
    """One row per run, with the prediction in it."""
    for row in list_measurements():
        row = shrink(row) if tiny else row
        config = config_of(row["model"], tiny) if "model" in row else None
        for run in row.get("runs", [row.get("run")]):
            one = {**row, "run": run}
            yield one, predictor.predict(one, config)


def test_every_measurement_has_a_prediction():
    for tiny in (False, True):
        rows = [
            (row, predicted) for row, predicted in predicted_rows(Predictor(H200), tiny) if row["kind"] != "project"
        ]
        empty = [row["run"]["kernel"] for row, predicted in rows if not predicted]
        assert empty == ["clip"]  # a part of the fitted STEP_OVERHEAD_SECONDS
        for row, predicted in rows:
            assert all(value > 0 for value in predicted.values() if isinstance(value, float)), row["name"]


def test_ratio_is_predicted_over_measured():
    row = {"kind": "gemm", "predicted": {"seconds": 3.0}, "measured": {"median_seconds": 2.0}}
    assert compare(row) == {"seconds": 1.5}


def test_a_baseline_is_measured_too():
    rows = list_measurements()
    names = {row["name"] for row in rows}
    assert len(names) == len(rows)
    assert {row["baseline"] for row in rows if "baseline" in row} <= names


def test_what_takes_too_long_is_killed_and_said(tmp_path):
    rows, wrong = gpu_day.run_child(["--describe", "--work", str(tmp_path)], 0.05, tmp_path)
    assert rows == []
    assert wrong.startswith("killed after 0")


def test_only_what_is_missing_or_was_cut_short_is_run_again(tmp_path, monkeypatch):
    old = [
        {"name": "terms/a/0", "family": "terms/a"},
        {"name": "train/failed", "error": "out of memory"},
        {"name": "terms/b/0", "family": "terms/b"},
        {"name": "terms/b", "error": "killed after 9 s", "cut_short": True},
    ]
    file = tmp_path / "out.json"
    file.write_text(json.dumps({"machine": H200, "tiny": False, "rows": old}), encoding="utf-8")
    monkeypatch.setattr(gpu_day, "begin", lambda work, tiny: {"machine": H200, "tiny": tiny, "rows": []})
    monkeypatch.setattr(gpu_day, "run_one", lambda row, left, tiny, work: [{"name": row["name"], "measured": {}}])
    rows = [{"name": name, "kind": "gemm"} for name in ("terms/a", "train/failed", "terms/b", "terms/c")]
    gpu_day.run_all(file, tmp_path, rows, 60, False)
    after = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in after] == ["terms/a/0", "train/failed", "terms/b", "terms/c"]


@pytest.mark.parametrize(
    ("here", "differs"),
    [
        ({"tiny": True}, "--dry-run"),
        ({"machine": H200 | {"name": "NVIDIA L4", "versions": {"torch": "3"}}}, "name and versions"),
    ],
)
def test_rows_of_another_machine_or_of_toy_sizes_are_not_taken_for_these(tmp_path, monkeypatch, here, differs):
    """They counted as measured, and the new ones stood below the name of the other card."""
    file = tmp_path / "out.json"
    file.write_text(json.dumps({"machine": H200, "tiny": False, "rows": []}), encoding="utf-8")
    monkeypatch.setattr(gpu_day, "begin", lambda work, tiny: {"machine": H200, "tiny": tiny} | here)
    with pytest.raises(SystemExit, match=f"another {differs}: give another --out"):
        gpu_day.run_all(file, tmp_path, [], 60, False)


def test_results_say_nothing_of_the_machine_they_ran_on():
    text = 'File "/opt/env/lib/python3.12/site-packages/torch/nn/a.py", line 1\n  OSError: /srv/secret/b.json'
    assert gpu_day.public(text) == 'File "torch/nn/a.py", line 1\n  OSError: …/b.json'


def test_few_rows_are_of_as_many_kinds():
    kinds = [row["kind"] for row in spread_kinds(list_measurements())]
    assert len(set(kinds[:5])) == 5 and sorted(kinds) == sorted(row["kind"] for row in list_measurements())


def test_a_sweep_has_sixty_settings_none_twice():
    settings = [
        (row["model"], *sorted(run.items()))
        for row in list_measurements()
        if row["kind"] == "train"
        for run in row.get("runs", [])
    ]
    assert len(settings) == len(set(settings)) >= 60


@pytest.mark.slow
@pytest.mark.core
def test_a_day_that_is_killed_goes_on_where_it_was(tmp_path):
    """On the CPU in small: killed in its second measurement, continued, no row twice."""
    out, work = tmp_path / "day.json", tmp_path / "work"
    script = str(Path(gpu_day.__file__).resolve())
    words = [
        sys.executable,
        script,
        "--dry-run",
        "--device",
        "cpu",
        "--rows",
        "5",
        "--out",
        str(out),
        "--work",
        str(work),
    ]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 300
    while not (out.exists() and json.loads(out.read_text(encoding="utf-8"))["rows"]):
        assert first.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (kept,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert rows[0]["measured"] == kept["measured"] and f"{kept['name']}: " not in done.stdout
    assert [row["error"] for row in rows if "error" in row] == []
    assert len({row["kind"] for row in rows}) == 5
    assert all("predicted_over_measured" in row for row in rows)


def measure_by_name(row: dict) -> dict:
    if row["name"] == "hangs":
        time.sleep(60)
    if row["name"] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"measured": {"pid": os.getpid()}}


def test_of_what_is_measured_side_by_side_nothing_holds_up_the_rest(tmp_path):
    rows = [{"name": name} for name in ("a", "hangs", "dies", "b", "c")]
    until = time.monotonic() + 60
    done = {row["name"]: new for row, new in run_rows(rows, 2, measure_by_name, tmp_path, until, limit=1)}
    assert {done[name]["measured"]["pid"] for name in "abc"}.isdisjoint({os.getpid()})
    assert done["hangs"] == {"error": "killed after 1 s"}
    assert done["dies"]["error"].startswith("killed after 0 s")


def test_what_the_end_of_the_time_cut_short_is_marked(tmp_path):
    rows = [{"name": "hangs"}, {"name": "never begun"}]
    ((row, new),) = run_rows(rows, 1, measure_by_name, tmp_path, time.monotonic() + 0.3, limit=50)
    assert row["name"] == "hangs" and new["cut_short"]


def test_each_technique_of_one_gpu_has_a_project():
    names = [name_row(case, pin) for case in CASES for pin in (None, *list_pins(case))]
    assert len(names) == len(set(names))
    axes = {pin[0] for case in CASES for pin in list_pins(case)}
    assert {"optimizer", "packing", "checkpointing", "precision", "loss", "quantization", "speculation"} <= axes
    assert not axes & {"parallelism", "engine", "trained"}


def test_what_is_prepared_is_listed_as_planned_first(tmp_path):
    for case, name in (("a", "z=1"), ("a", "as-planned"), ("b", "as-planned"), ("a", "b=2")):
        (tmp_path / case / name).mkdir(parents=True)
        (tmp_path / case / name / "row.json").write_text(json.dumps({"case": case, "project": name}))
    listed = [(row["case"], row["project"]) for row in list_prepared(tmp_path)]
    assert listed == [("a", "as-planned"), ("b", "as-planned"), ("a", "b=2"), ("a", "z=1")]


@pytest.mark.slow
def test_emitted_projects_are_moved_and_run_side_by_side(tmp_path):
    """As on the day: written in one place, run in another, where what their links name is not."""
    prepared, moved = tmp_path / "here", tmp_path / "there"
    names = ["smoke/sft/optimizer=sgd", "smoke/infer-one/speculation=prompt-lookup"]
    prepare_smoke(prepared / "smoke", "cpu:2", names)
    prepared.rename(moved)
    out = tmp_path / "day.json"
    words = ["--device", "cpu", "--inputs", str(moved), "--work", str(tmp_path / "work"), "--out", str(out)]
    (tmp_path / "work").mkdir()
    script = str(Path(gpu_day.__file__).resolve())
    done = subprocess.run(
        [sys.executable, script, *words, "--only", "smoke"], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    trained, answered = sorted(json.loads(out.read_text())["rows"], key=lambda row: row["case"], reverse=True)
    assert len(trained["measured"]["train"]["losses"]) == 6 and "error" not in trained
    assert trained["measured"]["said"][-1].startswith("as planned: ")
    assert "tokens/s" in answered["measured"]["answer"][0]
