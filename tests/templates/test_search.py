"""search.py of a project: what it tries, how it reads a training, what it keeps; a real search, killed and gone on with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

optuna = pytest.importorskip("optuna")


@pytest.fixture
def values(load):
    return load("search_values")


@pytest.fixture
def trials(load):
    return load("search_trials")


@pytest.mark.parametrize(
    ("word", "low", "high", "log"),
    [
        ("learning_rate=1e-5..1e-3", 1e-5, 1e-3, True),
        ("--weight_decay=0..0.1", 0, 0.1, False),
        ("seed=1..9", 1, 9, False),
        ("seed=1..10", 1, 10, True),
    ],
)
def test_a_range_goes_by_factors_from_ten_times_on(values, word, low, high, log):
    found = values.parse_word(word)
    assert (found.low, found.high, found.log) == (low, high, log)
    assert found.includes(high) and not found.includes(high * 2)


def test_choices_keep_their_kinds(values):
    assert values.parse_word("lr_scheduler_type=linear,cosine").choices == ("linear", "cosine")
    assert values.parse_word("weight_decay=0,0.1").choices == (0, 0.1)
    assert values.parse_values([], 1e-3) == [values.Values("learning_rate", 1e-4, 1e-2)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["learning_rat=1..2"], "did you mean learning_rate"),
        (["learning_rate"], "say what to try"),
        (["learning_rate=1e-3..1e-5"], "from a lower number to a higher"),
        (["learning_rate=nan..1"], "from a lower number to a higher"),
        (["learning_rate=a..b"], "from a lower number to a higher"),
        (["learning_rate=1,1"], "stands twice"),
        (["learning_rate=1,,2"], "missing"),
        (["output_dir=a,b"], "search.py itself"),
        (["metric_for_best_model=loss,accuracy"], "compared by one"),
        (["seed=1..2", "seed=3..4"], "given twice"),
    ],
)
def test_what_cannot_be_tried_is_said(values, words, why):
    with pytest.raises(ValueError, match=why):
        values.parse_values(words, 1e-3)


def test_behind_the_dashes_are_flags_of_train(values):
    assert values.split_words(["seed=1..2", "--", "--max_steps", "3"]) == (["seed=1..2"], ["--max_steps", "3"])
    assert values.split_words(["seed=1..2"]) == (["seed=1..2"], [])


@pytest.mark.parametrize(
    ("flags", "standing", "metric"),
    [
        ([], None, "loss"),
        ([], "eval_perplexity", "perplexity"),
        (["--max_steps", "3", "--metric_for_best_model", "eval_accuracy"], "eval_loss", "accuracy"),
        (["--metric-for-best-model=macro_f1", "--seed", "1"], None, "macro_f1"),
    ],
)
def test_trials_are_judged_by_the_metric_that_they_train_by(values, flags, standing, metric):
    """That of a flag behind -- was not looked at: trials were compared by their loss."""
    assert values.read_metric(flags, {"metric_for_best_model": standing}) == metric


def test_a_metric_that_no_evaluation_has_is_refused(values):
    """It was a KeyError, after the first training."""
    with pytest.raises(ValueError, match="mean_token_accuracy: a search compares by loss, perplexity"):
        values.read_metric(["--metric_for_best_model", "eval_mean_token_accuracy"], {})


@pytest.mark.parametrize("metric", ["loss", "perplexity", "accuracy", "macro_f1"])
def test_an_evaluation_is_read_as_progress_prints_it(load, trials, metric):
    """With the line that the project prints itself."""
    progress = load("progress")
    logs = {"eval_loss": 2.5, "eval_perplexity": 12.25, "eval_accuracy": 0.75, "eval_macro_f1": 0.5}
    state = SimpleNamespace(global_step=30, max_steps=100)
    line = f"{progress.describe_step(state)}  evaluation: {progress.describe_metrics(logs)}\n"
    study = optuna.create_study()
    trial = study.ask()
    assert trials.report_evaluation(trial, line, metric) == 30
    assert study.trials[0].intermediate_values == {30: logs[f"eval_{metric}"]}
    assert trials.report_evaluation(trial, line.replace("30", "0", 1), metric) is None
    assert trials.report_evaluation(trial, "step 30/100  loss 2.5\n", metric) is None


def test_a_trial_is_no_last_run(load, tmp_path):
    runs = load("finished_runs")
    trial = tmp_path / "runs" / "search" / "trial-1"
    trial.mkdir(parents=True)
    (trial / "run.json").write_text("{}")
    runs.record_run(tmp_path, trial)
    assert runs.read_record(tmp_path) == trial
    (trial.parent / runs.STUDY).write_text("")
    (tmp_path / runs.LAST).unlink()
    runs.record_run(tmp_path, trial)
    assert runs.read_record(tmp_path) is None and runs.find_run(tmp_path, "runs") is None


def test_a_trial_is_held_until_its_process_ends(trials, tmp_path):
    assert not trials.is_held(tmp_path, 3)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,fcntl.LOCK_EX); print('held',flush=True); time.sleep(60)",
            str(tmp_path / "trial-3.lock"),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    assert trials.is_held(tmp_path, 3)
    holder.kill()
    holder.wait()
    assert not trials.is_held(tmp_path, 3)
    trials.hold_trial(tmp_path, 4)
    assert trials.is_held(tmp_path, 4)
    trials.release_trial(tmp_path, 4)
    assert not trials.is_held(tmp_path, 4)


@pytest.mark.parametrize(
    ("lines", "rows", "state", "text"),
    [
        (
            ["step 3: non-finite loss (nan). Earlier", "=" * 60, "exitcode : 1"],
            None,
            "PRUNED",
            "step 3: non-finite loss",
        ),
        (["CUDA out of memory"], None, "FAIL", "CUDA out of memory"),
        ([], [{"step": 0, "loss": 4.0}], "FAIL", "no evaluation after its first step"),
        ([], None, "FAIL", "no evaluation after its first step"),
        ([], [{"step": 2, "perplexity": 4.0}], "FAIL", "its evaluations have perplexity, and no loss"),
        ([], [{"step": 0, "loss": 1.0}, {"step": 2, "loss": 3.0}, {"step": 4, "loss": 3.5}], "COMPLETE", ""),
    ],
)
def test_how_a_training_ended(trials, tmp_path, monkeypatch, lines, rows, state, text):
    """Also where a launcher of several processes writes behind it, and where nothing was evaluated."""
    report = {"evaluations": rows} if rows is not None else {}
    script = (
        "import json, pathlib, sys; folder = pathlib.Path(sys.argv[1].removeprefix('--output_dir='));"
        f"(folder / 'run.json').write_text({json.dumps(report)!r});"
        f"print({chr(10).join(lines)!r}); sys.exit({int(bool(lines))})"
    )
    monkeypatch.setattr(trials, "find_command", lambda: [sys.executable, "-c", script])
    trial = optuna.create_study().ask()
    outcome = trials.run_trial(trial, {"seed": 1}, (), tmp_path, trials.Judge("loss", min, prune=True))
    assert outcome.state.name == state and text in outcome.text
    assert outcome.value == (3.0 if state == "COMPLETE" else None)


def search(project: Path, *words: str, **keywords) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "search.py", "learning_rate=1e-4..1e-2", *words],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **keywords,
    )


def make_project(folder: Path, steps: int) -> Path:
    words = (
        f"--sample --seq-len 64 --global-batch 8 --max-steps {steps} --no-smoke -q --hardware cpu:2 --pin compile=off"
    )
    subprocess.run(
        [sys.executable, "-m", "generator.cli", "init", str(folder), *words.split()], check=True, timeout=120
    )
    return folder


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on(tmp_path):
    """Kill -9 within its second trial: no training is left behind, and each trial is there once."""
    project = make_project(tmp_path / "p", 10)
    folder = project / "runs" / "search"
    first = search(project, "--trials", "3", start_new_session=True)
    for _ in range(240):
        if (folder / "trial-1" / "log.txt").is_file() and "step" in (folder / "trial-1" / "log.txt").read_text():
            break
        assert first.poll() is None, first.stdout and first.stdout.read()
        time.sleep(0.5)
    first.kill()
    first.wait()
    for _ in range(60):
        left = subprocess.run(["pgrep", "-f", str(folder / "trial-1")], capture_output=True).stdout.split()
        if not left:
            break
        time.sleep(0.5)
    assert not left
    second = search(project, "--trials", "3")
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    found = json.loads((folder / "search.json").read_text())
    states = [trial["state"] for trial in found["trials"]]
    assert sorted(states) == ["complete", "complete", "complete", "fail"]
    gone, again = found["trials"][1], found["trials"][2]
    assert gone["state"] == "fail" and again["values"] == gone["values"]
    assert found["trials"][0]["values"] == {"learning_rate": 3e-4}
    values = [trial["value"] for trial in found["trials"] if trial["state"] == "complete"]
    assert found["best"]["value"] == min(values) and len(set(values)) == 3
    best = folder / f"trial-{found['best']['number']}"
    assert [path.parent for path in folder.glob("trial-*/*.safetensors")] == [best]
    run = json.loads((best / "run.json").read_text())
    assert found["best"]["value"] == min(row["loss"] for row in run["evaluations"] if row["step"])
    assert (folder / "search.svg").read_text().startswith("<?xml")
    other = subprocess.run(
        [sys.executable, "search.py", "seed=1..9"], cwd=project, capture_output=True, text=True, timeout=120
    )
    assert other.returncode == 1 and "holds a search with other values" in other.stderr


@pytest.mark.slow
def test_a_value_that_train_refuses_ends_the_search(tmp_path):
    project = make_project(tmp_path / "p", 4)
    command = [sys.executable, "search.py", "lr_scheduler_type=wavy,bumpy", "--trials", "2", "--", "--max_steps", "2"]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1 and "the first trial failed" in ended.stderr
    assert re.search("invalid choice: '(wavy|bumpy)'", ended.stderr)  # the sampler draws one of them


FAILS_LATER = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1].removeprefix("--output_dir="))
if folder.name != "trial-0":
    sys.exit("the device is lost")
(folder / "run.json").write_text(json.dumps({"evaluations": [{"step": 2, "loss": 3.0}]}))
"""


@pytest.mark.slow
def test_trainings_that_fail_come_to_an_end(tmp_path):
    """A device that is lost within a search fails every trial from there on."""
    project = make_project(tmp_path / "p", 4)
    (project / "train.py").write_text(FAILS_LATER)
    output, _ = (ended := search(project, "--trials", "3")).communicate(timeout=120)
    assert ended.returncode == 0 and output.count("the device is lost") == 2
    found = json.loads((project / "runs" / "search" / "search.json").read_text())
    assert [trial["state"] for trial in found["trials"]] == ["complete", "fail", "fail"]
