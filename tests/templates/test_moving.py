"""The leaves that find what may have been moved: model and data, the finished run, the best checkpoint."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace as Values

import pytest

# ---- sources


@pytest.fixture
def sources(load, tmp_path, monkeypatch):
    module = load("sources")
    project = tmp_path / "it's a prójéct"
    project.mkdir()
    monkeypatch.setattr(module, "HERE", project)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.parametrize(
    "name", ["./data/d.jsonl", "data/d.jsonl", "./data/../data/d.jsonl", "./data/*.jsonl", "./data"]
)
def test_a_path_is_relative_to_the_project_wherever_it_is_started(sources, name):
    (sources.HERE / "data").mkdir()
    (sources.HERE / "data" / "d.jsonl").write_text("{}")
    assert sources.find_source({"data": name}, "data") == sources.HERE / name


def test_paths_above_at_home_and_from_the_root_are_paths_too(sources, tmp_path, monkeypatch):
    (tmp_path / "above.txt").write_text("a")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("../above.txt", "~/above.txt", str(tmp_path / "above.txt")):
        assert sources.find_source({"data": name}, "data").read_text() == "a"


def test_a_name_on_the_hub_is_no_path_and_none_may_stand_in_its_place(sources, tmp_path):
    config = {"model": "owner/name", "data": "owner/rows", "data_revision": None}
    assert sources.find_source(config, "model") == "owner/name"
    assert sources.find_source(config, "data") == "owner/rows"
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(
        SystemExit, match=r"owner/name is a name on the hub, and the folder of that name in .* would be"
    ):
        sources.find_source(config, "model")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./data/gone.jsonl", "is not here: copy it to .*gone.jsonl"),
        ("gone.jsonl", "is not here: copy it to .*gone.jsonl"),
        ("./data/link.jsonl", "leads to /nowhere/d.jsonl, which is not here"),
        ("./data/link*.jsonl", "leads to /nowhere/d.jsonl, which is not here"),
        (".\\data\\gone.jsonl", "paths are written with / here"),
        (None, "config.yaml names no data"),
    ],
)
def test_what_is_not_there_ends_the_run_with_one_line(sources, name, words):
    (sources.HERE / "data").mkdir()
    (sources.HERE / "data" / "link.jsonl").symlink_to("/nowhere/d.jsonl")
    with pytest.raises(SystemExit, match=words) as ended:
        sources.find_source({"data": name}, "data")
    assert "\n" not in str(ended.value)


# ---- finished runs


@pytest.fixture
def runs(load):
    return load("finished_runs")


def finish_run(folder: Path, at: float = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", (at, at))
    return folder


def test_the_run_that_was_finished_last_is_meant_whatever_its_folder(runs, tmp_path, capsys):
    project = tmp_path / "p"
    assert runs.find_run(project, "runs") is None
    for folder in (project / "runs", project / "sweeps" / "b", tmp_path / "scratch"):
        finish_run(folder)
        runs.record_run(project, folder)
        assert runs.find_run(project, "edited") == runs.find_run(project, "runs") == folder
    shutil.rmtree(tmp_path / "scratch")
    assert runs.find_run(project, "runs") == project / "runs"  # as config.yaml says
    assert runs.choose_run(project, "runs", None) == project / "runs"
    assert f"{tmp_path / 'scratch'}, the last finished run, is not there" in capsys.readouterr().err


def test_a_moved_project_finds_its_run(runs, tmp_path):
    finish_run(tmp_path / "a" / "sweeps" / "b")
    finish_run(tmp_path / "a" / "newer", at=9)
    runs.record_run(tmp_path / "a", tmp_path / "a" / "sweeps" / "b")
    (tmp_path / "a").rename(tmp_path / "b")
    assert runs.find_run(tmp_path / "b", "runs") == tmp_path / "b" / "sweeps" / "b"
    assert str(tmp_path) not in (tmp_path / "b" / runs.LAST).read_text()


def test_without_a_record_it_is_that_of_config_yaml_or_the_newest_and_never_a_trial(runs, tmp_path):
    runs.record_run(tmp_path, finish_run(tmp_path / "runs" / "smoke", at=9))
    assert not (tmp_path / runs.LAST).exists() and runs.find_run(tmp_path, "runs") is None
    finish_run(tmp_path / "second", at=1)
    assert runs.find_run(tmp_path, "runs") == tmp_path / "second"
    finish_run(tmp_path / "sweeps" / "a", at=2)
    assert runs.find_run(tmp_path, "runs") == tmp_path / "sweeps" / "a"
    finish_run(tmp_path / "runs")
    assert runs.find_run(tmp_path, "runs") == tmp_path / "runs"


@pytest.mark.parametrize("text", ["", "[]", '{"run": 3}', "\xff", '{"run": "\\u0000"}'])
def test_a_record_that_cannot_be_read_is_none(runs, tmp_path, text):
    (tmp_path / "runs").mkdir()
    (tmp_path / runs.LAST).write_bytes(text.encode("latin-1"))
    assert runs.find_run(tmp_path, "runs") is None


def test_no_other_model_answers_in_place_of_a_run(runs, tmp_path):
    with pytest.raises(SystemExit, match=r"holds no finished run: train.py first"):
        runs.choose_run(tmp_path, "runs", None)
    (tmp_path / "runs" / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"is not finished: train.py goes on with it"):
        runs.choose_run(tmp_path, "runs", None)
    finish_run(tmp_path.parent / "away")
    runs.record_run(tmp_path, tmp_path.parent / "away")
    shutil.rmtree(tmp_path.parent / "away")
    with pytest.raises(SystemExit, match=r"was written to .*away, which holds none now"):
        runs.choose_run(tmp_path, "runs", None)
    with pytest.raises(SystemExit, match=r"no model is there"):
        runs.choose_run(tmp_path, "runs", tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert runs.choose_run(tmp_path, "runs", tmp_path) == tmp_path


def test_a_record_that_cannot_be_written_is_a_line(runs, tmp_path, capsys):
    (tmp_path / "runs").write_text("a file")
    runs.record_run(tmp_path, tmp_path / "b")
    assert f"infer.py --run {tmp_path / 'b'}" in capsys.readouterr().err


# ---- the best checkpoint

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@needs_transformers
@pytest.mark.parametrize("original", ["gone", "still there"])
def test_the_best_checkpoint_is_that_of_this_folder(load, tmp_path, original, capsys):
    callback = load("evaluation").FindBestCheckpoint()
    before, now = tmp_path / "a" / "checkpoint-4", tmp_path / "b" / "checkpoint-4"
    now.mkdir(parents=True)
    if original == "still there":
        before.mkdir(parents=True)
    args = Values(output_dir=str(tmp_path / "b"), load_best_model_at_end=True)
    recorded = None if original == "gone" else str(before)  # Trainer has looked for it already
    state = Values(global_step=6, best_global_step=4, best_model_checkpoint=recorded, best_metric=1.0)
    callback.on_train_begin(args, state, None)
    assert state.best_model_checkpoint == str(now) and state.best_metric == 1.0
    now.rmdir()
    state.is_world_process_zero = True
    callback.on_train_begin(args, state, None)
    assert (state.best_model_checkpoint, state.best_global_step, state.best_metric) == (None, None, None)
    assert "checkpoint-4, is not in" in capsys.readouterr().out


@needs_transformers
def test_a_run_that_begins_has_no_best_checkpoint(load):
    state = Values(global_step=0, best_global_step=None)
    load("evaluation").FindBestCheckpoint().on_train_begin(Values(), state, None)
    assert state.best_global_step is None
