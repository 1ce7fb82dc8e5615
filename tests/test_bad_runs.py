"""What the generated project does when its run is killed, its checkpoints are damaged, its loss is no number (rows train-* and data-03).

One process imports the project's train.py and forks a child for each run, so that the imports are paid for once.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from projects import TEXT, render_small_project
from safetensors.torch import load_file
from test_data_formats import make_tokenizer

from generator.run.figures import RunFigures

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="each run is a forked child")]
DRIVER = r"""
import json, os, select, signal, sys, traceback
sys.path.insert(0, os.getcwd())
import train, checkpoints, stopping, torch  # noqa

def kill_at_event(number):
    # at the n-th change of a name in the run folder; what is removed with a folder has no path of its own
    seen, output = 0, sys.argv[sys.argv.index("--output_dir") + 1]
    def hook(event, args):
        nonlocal seen
        if event not in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            return
        path = str(args[0])
        if event == "open" and ("w" not in str(args[1] or "r") or not path.startswith(output)):
            return
        if path.startswith(output) or not os.path.isabs(path):
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
    sys.addaudithook(hook)

def signal_at_step(event):
    step, number = event
    real = stopping.SaveOnSignal.on_step_end
    def on_step_end(self, args, state, control, **more):
        if state.global_step == step:
            os.kill(os.getpid(), number)
        return real(self, args, state, control, **more)
    stopping.SaveOnSignal.on_step_end = on_step_end

def hang_up_at_step(step):
    # a terminal of its own, which is closed; then the shell's own signal
    import fcntl, termios, threading
    os.setsid()
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number in (0, 1, 2):
        os.dup2(slave, number)
    os.close(slave)
    shown, closed = [], threading.Event()
    def show():
        while not closed.is_set():
            if select.select([master], [], [], 0.05)[0]:
                shown.append(os.read(master, 4096))
        os.close(master)
    screen = threading.Thread(target=show)
    screen.start()
    real = stopping.SaveOnSignal.on_step_end
    def on_step_end(self, args, state, control, **more):
        if state.global_step == step:
            closed.set()
            screen.join()
            os.kill(os.getpid(), signal.SIGHUP)
        return real(self, args, state, control, **more)
    stopping.SaveOnSignal.on_step_end = on_step_end

def leave_log_at_step(event):
    # `| tee log`, which Ctrl-C ends with the rest, or a log on a full disk
    step, number, log = event
    real = stopping.SaveOnSignal.on_step_end
    def on_step_end(self, args, state, control, **more):
        if state.global_step == step:
            reader, writer = os.pipe()
            os.close(reader)
            for stream in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY) if log else writer, stream)
            if number:
                os.kill(os.getpid(), number)
        return real(self, args, state, control, **more)
    stopping.SaveOnSignal.on_step_end = on_step_end

def poison_at_step(step):
    real = stopping.SaveOnSignal.on_step_end
    def on_step_end(self, args, state, control, **more):
        if state.global_step == step:
            for parameter in more["model"].parameters():
                parameter.data.fill_(float("nan"))
        return real(self, args, state, control, **more)
    stopping.SaveOnSignal.on_step_end = on_step_end

def kill_after_last_step(_):
    import saved_weights
    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    saved_weights.read_weights = kill

def full_disk_from_step(step):
    import shutil
    from collections import namedtuple
    real = checkpoints.SealCheckpoints.on_step_end
    def on_step_end(self, args, state, control, **more):
        if state.global_step >= step:
            checkpoints.shutil.disk_usage = lambda path: namedtuple("usage", "total used free")(1, 1, 0)
        return real(self, args, state, control, **more)
    checkpoints.SealCheckpoints.on_step_end = on_step_end

def evaluate_as(losses):
    import evaluation
    real = evaluation.average_over_tokens
    def average_over_tokens(trainer):
        real(trainer)
        loop = trainer.evaluation_loop
        def evaluation_loop(*args, **more):
            output = loop(*args, **more)
            output.metrics["eval_loss"] = losses[trainer.state.global_step]
            return output
        trainer.evaluation_loop = evaluation_loop
    evaluation.average_over_tokens = average_over_tokens

def stop_early(patience):
    train.CONFIG["early_stopping"] = patience

def signal_in_evaluation(step):
    real = train.Trainer.prediction_step
    def prediction_step(self, *args, **more):
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args, **more)
    train.Trainer.prediction_step = prediction_step

def private(_):
    os.umask(0o077)

def fill_disk_before(event):
    module, name, left, call = event  # the n-th call finds so many bytes left
    owner = getattr(sys.modules[module.partition(".")[0]], module.partition(".")[2]) if "." in module else sys.modules[module]
    real, calls = getattr(owner, name), []
    def fill(*args, **more):
        calls.append(1)
        if len(calls) == call:
            with open(os.environ["FILLER"], "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)) == 4096:
                        pass
                except OSError:
                    pass
                file.truncate(max(0, file.tell() // 4096 * 4096 - left))
        return real(*args, **more)
    setattr(owner, name, fill)

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
        continue
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1); os.dup2(log, 2)
    sys.argv = ["train.py", *order["arguments"]]
    code = 0
    try:
        for name, value in order["how"].items():
            globals()[name](value)
        train.run_main(train.main)
    except SystemExit as done:
        if isinstance(done.code, str):
            print(done.code)
        code = 0 if done.code is None else done.code if isinstance(done.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(code)
"""


class Runs:
    """A generated project, and runs of its train.py in folders of their own; ``disk`` is for one that gets full."""

    def __init__(self, folder: Path, data: str = TEXT, name: str = "d.txt", **request):
        render_small_project(folder, data, name, **request)
        self.folder = folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        quiet = {
            "FILLER": str(self.disk / "filler"),
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=folder / "p",
            env=os.environ | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, name: str, *arguments: object, save_steps: int = 2, **how: object) -> tuple[int, str]:
        """Exit code and output of one run in the folder ``name``."""
        log = self.folder / "log"
        given = ["--output_dir", str(self.folder / name), "--save_steps", str(save_steps), *map(str, arguments)]
        order = {"log": str(log), "arguments": given, "how": how}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["code"], log.read_text(errors="replace")

    def weights(self, name: str) -> str:
        return hashlib.sha256((self.folder / name / "model.safetensors").read_bytes()).hexdigest()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    started = Runs(tmp_path_factory.mktemp("runs"))
    code, output = started.run("uninterrupted")
    assert code == 0, output
    yield started
    started.close()


def copied(runs: Runs, name: str) -> Path:
    """A run that was stopped after step 6, with checkpoints 4 and 6."""
    if not (runs.folder / "half").exists():
        code, output = runs.run("half", signal_at_step=[6, signal.SIGKILL])
        assert code == -signal.SIGKILL, output
        code, output = runs.run("half", signal_at_step=[7, signal.SIGKILL])
        assert code == -signal.SIGKILL, output
    shutil.copytree(runs.folder / "half", runs.folder / name)
    return runs.folder / name


EVALUATED = ("--eval_steps", 2, "--load_best_model_at_end", True)
STRIDE = 9
"""Every how many changes of a name a run is killed: 1 takes several minutes of an idle machine."""


def test_train_01_killed_at_any_file_it_resumes_to_the_same_weights_and_report(runs):
    code, output = runs.run("evaluated", *EVALUATED)
    assert code == 0, output
    expected = json.loads((runs.folder / "evaluated" / "run.json").read_text())
    for number in range(0, 10**4, STRIDE):
        name = f"killed-{number}"
        code, output = runs.run(name, *EVALUATED, kill_at_event=number)
        if code == 0:
            break
        assert code == -signal.SIGKILL, output
        code, output = runs.run(name, *EVALUATED)
        assert code == 0, (number, output)
        folder = runs.folder / name
        assert runs.weights(name) == runs.weights("evaluated"), number
        report = RunFigures.model_validate_json((folder / "run.json").read_text())
        for key in ("losses", "finished_step", "ended", "kept_step", "eval_rows"):
            assert json.loads((folder / "run.json").read_text())[key] == expected[key], (number, key)
        assert [row.step for row in report.evaluations] == [0, 2, 4, 6, 8], number
        assert "## Measured" in (folder / "README.md").read_text() and (folder / "loss.svg").stat().st_size, number
        left = {path.name for path in folder.iterdir()}
        assert not left & {"_set-aside", "model.unfinished"} and len(list(folder.glob("checkpoint-*"))) == 2, (
            number,
            left,
        )
        assert not [path for path in left if path.startswith("_removed-") or path.endswith(".tmp")], (number, left)
        shutil.rmtree(folder)
    assert number > 100, "the events were not seen"


@pytest.mark.parametrize(
    "damage", ["no trainer_state", "0 bytes", "no seal", "half a seal", "an empty seal", "zeros", "a new folder"]
)
def test_train_03_damaged_checkpoints_are_left_out(runs, damage):
    folder = copied(runs, f"damaged {damage}".replace(" ", "-"))
    newest = max(folder.glob("checkpoint-*"), key=lambda p: int(p.name.rsplit("-", 1)[1]))
    if damage == "no trainer_state":
        (newest / "trainer_state.json").unlink()
    elif damage == "0 bytes":
        (newest / "optimizer.pt").write_bytes(b"")
    elif damage == "no seal":
        (newest / "complete.json").unlink()
    elif damage == "half a seal":
        (newest / "complete.json").write_text('{"run": ')
    elif damage in ("an empty seal", "zeros"):
        (newest / "complete.json").write_bytes(b"" if damage == "an empty seal" else bytes(512))
    else:
        newest = folder / "checkpoint-999"
        newest.mkdir()
        (newest / "notes").write_text("mine")
    code, output = runs.run(folder.name)
    assert code == 0 and "is not resumed" in output and (folder / "_set-aside" / newest.name).is_dir(), output
    assert runs.weights(folder.name) == runs.weights("uninterrupted")


def test_train_04_a_full_disk_keeps_what_is_there(runs):
    code, output = runs.run("full", full_disk_from_step=4)
    assert code == 0 and "not saved" in output, output
    assert [p.name for p in (runs.folder / "full").glob("checkpoint-*")] == ["checkpoint-2"]


@pytest.fixture(scope="module")
def small_disk(runs):
    """A file system of 64 MiB, in memory."""
    if os.geteuid():
        pytest.skip("only root can mount a file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", runs.disk], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr}")
    yield runs.disk
    subprocess.run(["umount", runs.disk], check=True)


FULL = [(("train.Trainer", "_save_checkpoint", 3), left) for left in (0, 60_000, 200_000, 420_000)]
FULL += [(("train", "save_final_model", 1), left) for left in (0, 60_000)]
FULL += [((*call,), 0) for call in (("train", "write_model_card", 1), ("run_report", "draw_loss", 2))]
FULL += [(("seals", "sync_to_disk", 20), 0)]  # of the second checkpoint: one has 11 files


@pytest.mark.parametrize(("call", "left"), FULL, ids=lambda value: value[1] if isinstance(value, tuple) else None)
def test_train_04_a_disk_that_gets_full_is_one_line_and_the_next_start_finishes(runs, small_disk, call, left):
    module, function, number = call
    shutil.rmtree(small_disk / "full", ignore_errors=True)
    code, output = runs.run("disk/full", fill_disk_before=[module, function, left, number])
    (small_disk / "filler").unlink()
    if code:  # so many bytes were enough, else
        assert code == 1 and "The disk is full, or it fails. What was saved before is complete" in output, output
        assert "Traceback" not in output and not (small_disk / "full" / "run.json").exists(), output
        assert list((small_disk / "full").glob("checkpoint-*/complete.json"))
    assert code or left, "the disk was not full"
    code, output = runs.run("disk/full")
    assert code == 0 and runs.weights("disk/full") == runs.weights("uninterrupted"), output
    assert (small_disk / "full" / "run.json").is_file() and not (small_disk / "full" / "_set-aside").exists(), output


def test_train_04_a_folder_that_takes_no_files_ends_the_run_before_it_begins(runs, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    code, output = runs.run("disk/readonly")
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert code == 1 and "readonly takes no files (Read-only file system): see who owns it" in output, output
    assert "Traceback" not in output and "first example" not in output


def test_nobody_else_can_read_what_a_private_umask_forbids(runs):
    code, output = runs.run("private", private=None)
    assert code == 0, output
    paths = [runs.folder / "private", *(runs.folder / "private").rglob("*")]
    assert len(paths) > 20 and not [path for path in paths if path.stat().st_mode & 0o077]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--seed", 7), "seed: 42 then, 7 now"),
        (("--per_device_train_batch_size", 2), "global batch"),
        (("--optim", "adafactor"), "optimizer"),
    ],
    ids=lambda value: f"train-06 {value[0]}" if isinstance(value, tuple) else None,
)
def test_train_06_another_run_s_checkpoint_is_refused(runs, change, words):
    folder = copied(runs, f"other{change[0]}")
    before = sorted(folder.rglob("*"))
    code, output = runs.run(folder.name, *change)
    assert code == 1 and words in output and "belongs to another run" in output and "Traceback" not in output, output
    assert sorted(folder.rglob("*")) == before


def test_train_06_one_row_of_many_that_was_edited_is_seen(tmp_path):
    """Of 64 rows all is compared; this one is between them."""
    make_tokenizer(tmp_path / "words")
    rows = [json.dumps({"text": f"row {number}", "label": str(number % 2)}) for number in range(400)]
    data, more = "\n".join(rows), {"task": "text-classification", "tokenizer": str(tmp_path / "words")}
    edited = Runs(tmp_path, data, "d.jsonl", **more)
    code, output = edited.run("run", signal_at_step=[5, signal.SIGKILL])
    assert code == -signal.SIGKILL, output
    (tmp_path / "d.jsonl").write_text(data.replace('row 3"', 'row 4"'))
    code, output = edited.run("run")
    assert code == 1 and "belongs to another run:\n  every row: sha256" in output, output
    (tmp_path / "d.jsonl").write_text(data)  # at another time, which is no other data
    code, output = edited.run("run")
    edited.close()
    assert code == 0 and "resuming from" in output, output


def test_train_06_a_resumed_run_takes_the_learning_rate_of_now(runs):
    """optimizer.pt and scheduler.pt hold the old one, and the first step of a longer run was taken at 0."""
    folder = copied(runs, "slower")
    code, output = runs.run(folder.name, "--learning_rate", 1e-5, "--max_steps", 12, "--warmup_steps", 0)
    assert code == 0 and "from step 6 on: learning rate: " in output and "length: 8 steps then, 12 steps now" in output
    state = json.loads((folder / "checkpoint-12" / "trainer_state.json").read_text())
    rates = [entry["learning_rate"] for entry in state["log_history"] if "loss" in entry][6:]
    assert rates == pytest.approx([1e-5 * (12 - step) / 12 for step in range(6, 12)])
    assert any("learning rate" in line for line in json.loads((folder / "run.json").read_text())["changes"])
    code, output = runs.run(folder.name, "--learning_rate", 1e-4, "--max_steps", 12, "--warmup_steps", 0)
    assert code == 1 and "nothing left to train" in output and "learning rate: 1e-05 then, 0.0001 now" in output


def test_train_07_a_loss_that_is_no_number_ends_the_run(runs):
    code, output = runs.run("nan", poison_at_step=5)
    assert code == 1 and "non-finite" in output and "Traceback" not in output, output
    assert not (runs.folder / "nan" / "model.safetensors").exists()
    assert max(p.name for p in (runs.folder / "nan").glob("checkpoint-*")) == "checkpoint-4"
    code, output = runs.run("nan")
    assert code == 0 and runs.weights("nan") == runs.weights("uninterrupted"), output


class Evil:
    def __init__(self, canary: Path):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@pytest.mark.parametrize("file", ["rng_state.pth", "optimizer.pt", "scheduler.pt", "training_args.bin"])
def test_train_09_a_checkpoint_that_holds_code_does_not_run_it(runs, file):
    folder = copied(runs, f"evil-{file}")
    canary = runs.folder / f"CANARY-{file}"
    for checkpoint in folder.glob("checkpoint-*"):
        (checkpoint / file).write_bytes(pickle.dumps(Evil(canary)))
        seal = json.loads((checkpoint / "complete.json").read_text())
        seal["files"][file] = (checkpoint / file).stat().st_size
        (checkpoint / "complete.json").write_text(json.dumps(seal))
    runs.run(folder.name)
    assert not canary.exists()


@pytest.mark.core
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["train-10 TERM", "^C"])
def test_train_10_a_signal_saves_and_ends(runs, number, code):
    name = f"signal-{code}"
    ended, output = runs.run(name, save_steps=500, signal_at_step=[3, int(number)])
    assert ended == code and "run again to go on" in output, output
    assert (runs.folder / name / "checkpoint-3" / "complete.json").is_file()
    ended, output = runs.run(name, save_steps=500)
    assert ended == 0 and runs.weights(name) == runs.weights("uninterrupted"), output


@pytest.mark.core
def test_train_10_a_closed_terminal_saves_and_ends(runs):
    ended, output = runs.run("hung-up", save_steps=500, hang_up_at_step=3)
    assert ended == 128 + signal.SIGHUP, output
    assert (runs.folder / "hung-up" / "checkpoint-3" / "complete.json").is_file()
    ended, output = runs.run("hung-up", save_steps=500)
    assert ended == 0 and runs.weights("hung-up") == runs.weights("uninterrupted"), output


@pytest.mark.parametrize(
    ("number", "log", "code"),
    [(int(signal.SIGINT), None, 130), (0, "/dev/full", 0)],
    ids=["^C of `| tee`", "a full disk"],
)
def test_train_10_a_log_that_takes_no_lines_ends_no_training(runs, number, log, code):
    """BrokenPipeError and ENOSPC came before the save, and nothing told of them."""
    name = f"no-log-{code}"
    ended, output = runs.run(name, save_steps=500, leave_log_at_step=[3, number, log])
    assert ended == code, output
    assert (runs.folder / name / "checkpoint-3" / "complete.json").is_file() == bool(number)
    ended, output = runs.run(name, save_steps=500)
    assert ended == 0 and runs.weights(name) == runs.weights("uninterrupted"), output


def test_train_10_a_signal_on_a_full_disk_names_the_last_save(runs):
    code, output = runs.run("signal-full", full_disk_from_step=4, signal_at_step=[5, int(signal.SIGTERM)])
    assert code == 143 and "nothing was saved since step 2" in output and "run again" not in output, output


def test_train_10_a_signal_at_the_last_step_lets_the_run_finish(runs):
    code, output = runs.run("signal-last", "--eval_strategy", "no", signal_at_step=[8, int(signal.SIGTERM)])
    assert code == 0 and (runs.folder / "signal-last" / "run.json").is_file(), output
    assert runs.weights("signal-last") == runs.weights("uninterrupted")


def test_train_01_killed_before_its_report_a_second_start_writes_it(runs):
    folder = copied(runs, "no-report")
    assert runs.run("no-report")[0] == 0
    (folder / "run.json").unlink()
    code, output = runs.run("no-report")
    assert code == 0 and "nothing left to train" in output, output
    known = json.loads((folder / "run.json").read_text())
    assert known["finished_step"] == 8 and len(known["losses"]) == 8
    assert known["step_seconds"] > 0, "the newest checkpoint has what was measured"


def test_train_01_killed_after_its_report_a_second_start_calls_it_the_last_run(runs):
    """Else infer.py went on with the run before, and every other start said that nothing is left to train."""
    copied(runs, "not-recorded")
    assert runs.run("not-recorded")[0] == 0
    record = runs.folder / "p" / "runs" / "last_run.json"
    record.write_text('{"run": "of before"}')
    code, output = runs.run("not-recorded")
    assert code == 0 and "nothing left to train" in output, output
    assert json.loads(record.read_text()) == {"run": (runs.folder / "not-recorded").resolve().as_posix()}


@pytest.mark.parametrize("killed", [True, False], ids=["killed after its last step", "finished"])
def test_train_01_started_again_after_its_last_step_the_best_model_stays(runs, killed):
    """The best is the first here, as the loss falls: the last checkpoint holds another model."""
    name = f"best-{killed}"
    best = ("--eval_steps", 2, "--greater_is_better", True, "--learning_rate", 0.01)
    code, output = runs.run(name, *best, **({"kill_after_last_step": None} if killed else {}))
    assert code == (-signal.SIGKILL if killed else 0), output
    code, output = runs.run(name, *best)
    assert code == 0 and "nothing left to train" in output, output
    folder = runs.folder / name
    step = json.loads((folder / "run.json").read_text())["kept_step"]
    weights = [load_file(folder / part / "model.safetensors") for part in (".", f"checkpoint-{step}", "checkpoint-8")]
    same = [all(torch.equal(weights[0][key], other[key]) for key in other) for other in weights[1:]]
    assert step == 2 and same == [True, False]


LOSSES = [9, 8, 5, 3, 6, 7, 7, 7, 7]
"""By step: the smallest at one that --save_steps 2 leaves out, the smallest that is saved at step 2."""


@pytest.mark.parametrize(("keeps_best", "kept"), [(True, 2), (False, 8)])
def test_train_12_the_model_that_run_json_names_is_the_one_that_was_kept(runs, keeps_best, kept):
    """Step 3 was called the best, so step 2 was removed, and the last one kept "as the best is not as it was saved"."""
    name, best = f"kept-{keeps_best}", ("--eval_steps", 1, "--metric_for_best_model", "eval_loss")
    code, output = runs.run(name, *best, "--load_best_model_at_end", keeps_best, evaluate_as=LOSSES)
    assert code == 0 and "is not as it was saved" not in output, output
    folder = runs.folder / name
    assert json.loads((folder / "run.json").read_text())["kept_step"] == kept
    assert runs.weights(name) == runs.weights(f"{name}/checkpoint-{kept}")


def test_train_12_another_metric_at_resume_begins_to_compare_anew(runs):
    """A loss of 1 is below any perplexity: its step stayed the best for ever."""
    arguments = ("--eval_steps", 2, "--load_best_model_at_end", True)
    code, output = runs.run("metric", *arguments, evaluate_as=[1] * 9, signal_at_step=[5, signal.SIGKILL])
    assert code == -signal.SIGKILL, output
    code, output = runs.run("metric", *arguments, "--metric_for_best_model", "eval_perplexity")
    assert code == 0 and "best model by: smallest eval_loss of" in output, output
    assert json.loads((runs.folder / "metric" / "run.json").read_text())["kept_step"] == 8


def test_train_10_a_signal_saves_where_only_the_best_is_saved_otherwise(runs):
    """The evaluation of step 4 came first, and said that nothing was to be saved."""
    best = ("--save_strategy", "best", "--eval_steps", 2, "--metric_for_best_model", "eval_loss")
    arguments = (*best, "--load_best_model_at_end", True)
    code, output = runs.run("best-signal", *arguments, evaluate_as=LOSSES, signal_at_step=[4, int(signal.SIGTERM)])
    assert code == 143 and "after step 4: run again to go on" in output, output
    code, output = runs.run("best-signal", *arguments, evaluate_as=LOSSES)
    assert code == 0 and "checkpoint-4, compared with its seal" in output, output
    assert runs.weights("best-signal") == runs.weights("best-signal/checkpoint-2")


def test_train_10_a_signal_within_an_epoch_saves_once_and_evaluates_nothing(runs):
    """Trainer ends the epoch there: it evaluated for as long as that takes, and wrote over the one checkpoint."""
    arguments = ("--save_strategy", "epoch", "--eval_strategy", "epoch", "--save_total_limit", 1)
    code, output = runs.run("epoch-signal", *arguments, signal_at_step=[3, int(signal.SIGTERM)])
    assert code == 143 and "run again to go on" in output and "step 3/8  evaluation" not in output, output
    assert output.count("Writing model shards: 100%") == 1
    code, output = runs.run("epoch-signal", *arguments)
    assert code == 0 and "checkpoint-3, compared" in output, output


@pytest.mark.parametrize("place", ["p", "m", "somebody-s-model"])
def test_train_13_a_folder_that_is_no_run_s_is_left_as_it_is(runs, place):
    """The end of a run replaced the README.md of the project, config.json and weights of the model it had begun with."""
    folder = runs.folder / place
    if place == "somebody-s-model":
        folder.mkdir()
        (folder / "model-00001-of-00002.safetensors").write_bytes(b"weeks of work")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, output = runs.run(place)
    assert code == 1 and "would be replaced. Take another --output_dir" in output and "Traceback" not in output, output
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_train_11_a_run_that_was_stopped_early_ends_there_again(runs):
    """With a learning rate of 0 no evaluation is better than the first."""
    arguments = ("--eval_steps", 1, "--load_best_model_at_end", True, "--learning_rate", 0, "--save_steps", 1)
    code, output = runs.run("early", *arguments, stop_early=2)
    assert code == 0 and "step 3: stopped early, 2 evaluations without a better eval_loss" in output, output
    report = json.loads((runs.folder / "early" / "run.json").read_text())
    assert report["finished_step"] == 3 and report["ended"] == "ended by early stopping at step 3"
    code, output = runs.run("early", *arguments, stop_early=2)
    assert code == 0 and "nothing left to train" in output and "ended by early stopping at step 3" in output, output
    (runs.folder / "early" / "run.json").unlink()
    code, output = runs.run("early", *arguments, stop_early=2)
    again = json.loads((runs.folder / "early" / "run.json").read_text())
    assert code == 0 and again["ended"] == report["ended"] and again["step_seconds"] > 0, output
    code, output = runs.run("early", *arguments)
    assert code == 0 and json.loads((runs.folder / "early" / "run.json").read_text())["finished_step"] == 8, output


def test_train_10_a_signal_during_the_first_evaluation_is_obeyed_in_it(runs):
    code, output = runs.run("evaluating", "--eval_on_start", True, "--eval_steps", 2, signal_in_evaluation=0)
    assert code == 143 and "stopped by SIGTERM before step 1: nothing is lost" in output, output


@pytest.mark.parametrize("step", [2, 6, 8])
def test_train_10_an_evaluation_that_a_signal_ends_is_made_when_the_run_goes_on(runs, step):
    """It was finished first, and the step was lost to the SIGKILL that follows."""
    whole, name = "evaluated", f"evaluated-{step}"
    if not (runs.folder / whole).exists():
        runs.run(whole, *EVALUATED, save_steps=4)
    code, output = runs.run(name, *EVALUATED, save_steps=4, signal_in_evaluation=step)
    assert code == 143 and f"stopped by SIGTERM after step {step}: run again to go on" in output, output
    code, output = runs.run(name, *EVALUATED, save_steps=4, signal_in_evaluation=step)  # that which comes first
    assert code == 143 and f"stopped by SIGTERM after step {step}: run again to go on" in output, output
    code, output = runs.run(name, *EVALUATED, save_steps=4)
    assert code == 0, output
    reports = [json.loads((runs.folder / each / "run.json").read_text()) for each in (whole, name)]
    losses = [[(row["step"], row["loss"]) for row in report["evaluations"]] for report in reports]
    assert losses[0] == losses[1] and reports[0]["kept_step"] == reports[1]["kept_step"]
    assert runs.weights(name) == runs.weights(whole)


def test_train_10_a_run_that_goes_on_stops_early_where_a_signal_ended_the_evaluation(runs):
    """Trainer trained one step more, which no checkpoint had, at each start anew."""
    arguments = ("--eval_steps", 1, "--load_best_model_at_end", False, "--learning_rate", 0, "--save_steps", 2)
    code, output = runs.run("early-signal", *arguments, stop_early=2, signal_in_evaluation=3)
    assert code == 143 and "after step 3: run again" in output, output
    code, output = runs.run("early-signal", *arguments, stop_early=2)
    report = json.loads((runs.folder / "early-signal" / "run.json").read_text())
    assert code == 0 and report["finished_step"] == 3 and "early stopping" in report["ended"], output
    code, output = runs.run("early-signal", *arguments, stop_early=2)
    assert code == 0 and "nothing left to train" in output, output


def test_train_10_a_signal_in_an_evaluation_looks_at_the_loss_and_the_disk_before_it_saves(runs):
    full = {"full_disk_from_step": 5, "signal_in_evaluation": 6}
    code, output = runs.run("evaluating-full", *EVALUATED, save_steps=4, **full)
    assert code == 143 and "nothing was saved since step 4" in output and "step 6: not saved" in output, output
    assert not (runs.folder / "evaluating-full" / "checkpoint-6").exists()
    bad = {"poison_at_step": 5, "signal_in_evaluation": 6}
    code, output = runs.run("evaluating-bad", *EVALUATED, "--logging_steps", 100, save_steps=4, **bad)
    assert code == 1 and "step 6: non-finite loss (nan). Earlier" in output, output
    assert not (runs.folder / "evaluating-bad" / "checkpoint-6").exists()


def test_train_12_the_best_step_without_room_is_not_the_one_that_is_kept(runs):
    """An evaluation asks for its save, behind the look at the disk."""
    best = ("--save_strategy", "best", "--eval_steps", 2, "--metric_for_best_model", "eval_loss")
    losses = {"evaluate_as": [9, 9, 5, 9, 3, 9, 4, 9, 9], "full_disk_from_step": 3}
    code, output = runs.run("best-full", *best, "--load_best_model_at_end", True, **losses)
    assert code == 0 and "step 4: not saved" in output and "step 8: not saved" not in output, output
    assert json.loads((runs.folder / "best-full" / "run.json").read_text())["kept_step"] == 2
    assert not (runs.folder / "best-full" / "checkpoint-4").exists()


def test_data_05_fewer_sequences_than_a_batch_is_refused_by_the_run_too(runs):
    code, output = runs.run("large", "--per_device_train_batch_size", 4096)
    assert code == 1 and "fewer than one global batch" in output and "Traceback" not in output, output


def test_data_02_a_file_that_was_damaged_after_planning_is_one_line(tmp_path):
    """`datasets` wraps what a reader raises in two tracebacks of its own."""
    whole = '{"text": "the quick brown fox jumps over the lazy dog"}\n' * 400
    damaged = Runs(tmp_path, whole, "d.jsonl")
    config = tmp_path / "p" / "config.yaml"
    config.write_text(config.read_text().replace("d.jsonl", "d.jsonl.gz"))
    (tmp_path / "p" / "data" / "d.jsonl.gz").write_bytes(gzip.compress(whole.encode())[:-9])
    code, output = damaged.run("bad")
    damaged.close()
    assert code == 1 and "d.jsonl.gz cannot be read: " in output and "Traceback" not in output, output


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('{"text": ""}\n' * 3, "data/d.jsonl: no usable text"),
        ('{"text": "a b c"}\n{bad\n', "row 2:"),
        ('{"text": "a b c"}\n\xff\n', "row 2:"),
    ],
    ids=["data-03 all empty", "data-02 broken", "data-02 latin-1"],
)
def test_data_that_changed_after_planning_is_refused_by_the_run(tmp_path, rows, words):
    changed = Runs(tmp_path, '{"text": "the quick brown fox jumps over the lazy dog"}\n' * 400, "d.jsonl")
    (tmp_path / "d.jsonl").write_text(rows, encoding="latin-1")
    code, output = changed.run("bad")
    changed.close()
    assert code == 1 and words in output and "Traceback" not in output, output
