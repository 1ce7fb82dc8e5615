"""Checkpoints and what stands around them: seals, the folder of a run, what makes it another run, its end."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Values

import pytest
from leaves import FRAGMENTS, make_control, make_state

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.fixture
def checkpoints(load) -> ModuleType:
    return load("checkpoints")


@pytest.fixture
def seals(load) -> ModuleType:
    return load("seals")


@pytest.fixture
def run_folder(load) -> ModuleType:
    leaf = sys.modules.get("run_folder") or load("run_folder")
    yield leaf
    for descriptor in leaf.HELD.values():
        os.close(descriptor)


RUN = {"data": "3 examples", "seed": 42, "processes": 2}


def write_checkpoint(output_dir: Path, step: int, run: dict = RUN) -> Path:
    """One as Trainer writes it, as far as the leaves look into it, and its seal."""
    import torch
    from safetensors.torch import save_file
    from seals import write_seal

    folder = output_dir / f"checkpoint-{step}"
    (folder / "deep").mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    save_file({"weight": torch.full((64,), float(step))}, folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"values": torch.full((64,), float(step))}, folder / name)
    (folder / "deep" / "state").write_bytes(b"123")
    write_seal(folder, run)
    return folder


def flip_byte(path: Path, place: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    path.write_bytes(data)


# ---- seals


def test_a_seal_names_every_file_and_the_run(seals, tmp_path):
    folder = write_checkpoint(tmp_path, 1)
    seal = seals.read_seal(folder)
    assert seal["run"] == RUN and seals.find_damage(folder, seal) is None and seals.has_hashes(seal)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*seal["files"], "complete.json"} and "deep/state" in files
    assert seal["files"]["deep/state"]["bytes"] == 3


def test_a_file_system_that_syncs_no_folders_is_no_error(seals, tmp_path, monkeypatch):
    def fail(number):
        def fsync(handle):
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    seals.sync_to_disk(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        seals.sync_to_disk(tmp_path)


def test_a_hash_is_that_of_the_hashes_of_its_blocks(seals, tmp_path, monkeypatch):
    from hashlib import sha256

    path, empty = tmp_path / "a", tmp_path / "b"
    path.write_bytes(bytes(range(250)))
    empty.write_bytes(b"")
    monkeypatch.setattr(seals, "BLOCK_BYTES", 100)
    monkeypatch.setattr(seals, "READ_BYTES", 30)
    parts = (path.read_bytes()[start : start + 100] for start in (0, 100, 200))
    expected = sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()
    assert seals.hash_files([path, empty]) == {path: expected, empty: sha256(sha256(b"").digest()).hexdigest()}


SHAPES = [
    "",
    "[]",
    "null",
    "3",
    '{"run": ',
    "[" * 10**5,
    '{"files": {}}',
    '{"run": {}, "files": []}',
    '{"run": null, "files": {}}',
    '{"run": [], "files": {}}',
    '{"run": {}, "files": {"a": null}}',
    '{"run": {}, "files": {}, "sha256": "0"}',
    '{"run": {}, "files": {"a": {"bytes": 1, "sha256": "0"}}}',
]


@pytest.mark.parametrize("text", SHAPES, ids=range(len(SHAPES)))
def test_json_of_another_shape_is_no_seal(seals, tmp_path, text):
    (tmp_path / "complete.json").write_text(text)
    assert seals.read_seal(tmp_path) is None


def test_no_byte_of_a_checkpoint_can_change_without_notice(checkpoints, tmp_path, capsys):
    """Of every file its first, middle and last byte, and every byte of the seal: the one before is resumed."""
    older, newest = write_checkpoint(tmp_path, 1), write_checkpoint(tmp_path, 2)
    files = [path for path in newest.rglob("*") if path.is_file()]
    seal = newest / "complete.json"
    places = [(path, place) for path in files for place in (0, 0.5, 1) if path != seal]
    places += [(seal, byte / (seal.stat().st_size - 1)) for byte in range(0, seal.stat().st_size, 13)]
    for path, place in places:
        before = path.read_bytes()
        flip_byte(path, place)
        assert path.read_bytes() != before
        assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(older), (path, place)
        aside = tmp_path / "_set-aside" / "checkpoint-2"
        aside.rename(newest)
        path.write_bytes(before)
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(newest)
    assert "optimizer.pt changed since: moved to" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["missing", "short", "a folder", "another kind"])
def test_what_cannot_be_read_is_not_resumed(checkpoints, tmp_path, how, capsys):
    older, newest = write_checkpoint(tmp_path, 1), write_checkpoint(tmp_path, 2)
    if how == "missing":
        (newest / "optimizer.pt").unlink()
    elif how == "short":
        os.truncate(newest / "optimizer.pt", 9)
    elif how == "a folder":
        (newest / "optimizer.pt").unlink()
        (newest / "optimizer.pt").mkdir()
    else:  # of a seal that a hand wrote, or one of before the hashes
        (newest / "optimizer.pt").write_bytes(b"no states")
        checkpoints.write_seal(newest, RUN)
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(older)
    assert "optimizer.pt" in capsys.readouterr().out and (tmp_path / "_set-aside" / "checkpoint-2").is_dir()


def test_a_seal_of_before_the_hashes_is_resumed_and_that_is_printed(checkpoints, tmp_path, capsys):
    folder = write_checkpoint(tmp_path, 1)
    files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    files.pop("complete.json")
    (folder / "complete.json").write_text(json.dumps({"run": {"data": "3 examples", "seed": 42}, "files": files}))
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(folder)
    assert "without hashes: only sizes are compared" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"seed: 42 then, 7 now"):
        checkpoints.find_newest_checkpoint(tmp_path, RUN | {"seed": 7})
    (folder / "trainer_state.json").write_text(" " * files["trainer_state.json"])
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) is None


# ---- the folder of a run


def test_what_is_not_known_is_kept(checkpoints, run_folder, tmp_path, capsys):
    """A stock Trainer's, one that cannot be read, a name of the user's, a link: all were removed, or ended every start."""
    run_folder.claim_folder(tmp_path, "owner/model")
    newest = write_checkpoint(tmp_path, 3)
    stock = tmp_path / "checkpoint-500"
    stock.mkdir()
    (stock / "model.safetensors").write_bytes(b"weeks of work")
    (tmp_path / "checkpoint-12-mine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoint-7").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "checkpoint-8").symlink_to(tmp_path / "nowhere")
    (tmp_path / "checkpoint-1").mkdir()  # older than what is resumed: in nobody's way
    for _ in range(2):
        assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(newest)
        stock.mkdir()
        (stock / "notes").touch()
    checkpoints.find_newest_checkpoint(tmp_path, RUN)
    aside = tmp_path / "_set-aside"
    assert (aside / "checkpoint-500" / "model.safetensors").read_bytes() == b"weeks of work"
    assert {path.name for path in aside.iterdir()} == {f"checkpoint-{n}" for n in ("500", "500-2", "500-3", "7", "8")}
    assert (tmp_path / "checkpoint-12-mine").is_dir() and (tmp_path / "checkpoint-1").is_dir()
    assert (
        tmp_path / "elsewhere"
    ).is_dir() and "it has no readable seal of train.py: moved to" in capsys.readouterr().out


def test_the_rest_of_an_own_save_is_removed_where_the_folder_is_locked(checkpoints, run_folder, tmp_path, capsys):
    """Each is as large as a checkpoint, and a run that is ended often would fill the disk with them."""
    from seals import begin_checkpoint

    begin_checkpoint(tmp_path / "checkpoint-9")
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) is None
    assert (tmp_path / "_set-aside" / "checkpoint-9").is_dir()  # another process may be writing it
    run_folder.claim_folder(tmp_path, "owner/model")
    begin_checkpoint(tmp_path / "checkpoint-9")
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) is None
    assert not (tmp_path / "checkpoint-9").exists() and "was begun" in capsys.readouterr().out
    assert len(list((tmp_path / "_set-aside").iterdir())) == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_a_finished_run_is_not_replaced_from_step_1(checkpoints, run_folder, tmp_path, damaged):
    """With --save_strategy no, or once its checkpoints were removed, a second start replaced the model."""
    (tmp_path / "run.json").write_text("{}")
    if damaged:
        (write_checkpoint(tmp_path, 4) / "optimizer.pt").write_bytes(b"")
    with pytest.raises(SystemExit, match="holds a finished run, and no checkpoint"):
        checkpoints.find_newest_checkpoint(tmp_path, RUN)
    with pytest.raises(SystemExit, match="holds a finished run"):
        run_folder.begin_anew(tmp_path)


def test_a_trial_gives_way_to_the_next_one(checkpoints, run_folder, tmp_path):
    """The README's eight steps under Slurm, into runs/smoke without checkpoints, were refused the second time."""
    trial = tmp_path / "smoke"
    trial.mkdir()
    (trial / "run.json").write_text("{}")
    assert checkpoints.find_newest_checkpoint(trial, RUN) is None
    run_folder.begin_anew(trial)


def test_the_classes_of_an_adapter_come_with_it(load, tmp_path):
    """They were written before it was known whether the run may go on: one that was refused renamed a finished run's."""
    leaf = load("final_model")

    def save_model(folder, _internal_call):
        Path(folder).mkdir()
        (Path(folder) / "adapter_model.safetensors").touch()
        assert not (tmp_path / "labels.json").exists()

    args = Values(output_dir=str(tmp_path), push_to_hub=False)
    trainer = Values(args=args, save_model=save_model, is_world_process_zero=lambda: True)
    leaf.save_final_model(trainer, ["neg", "pos"])
    assert json.loads((tmp_path / "labels.json").read_text()) == ["neg", "pos"]
    assert {path.name for path in tmp_path.iterdir()} == {"labels.json", "adapter_model.safetensors"}


class Foreign:
    """Of a package that torch.load takes no classes from."""


@pytest.mark.parametrize("older", [False, True])
def test_what_is_intact_and_cannot_be_read_here_is_no_reason_to_begin_anew(checkpoints, tmp_path, older):
    """A package that was removed: all checkpoints were moved aside, and training began at step 1."""
    import torch
    from seals import write_seal

    newest = write_checkpoint(tmp_path, 5)
    torch.save({"state": Foreign()}, newest / "optimizer.pt")
    write_seal(newest, RUN)
    if older:
        older = write_checkpoint(tmp_path, 3)
        assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(older)
    else:
        with pytest.raises(SystemExit, match=r"as it was saved, and optimizer\.pt cannot be read .*holds \S+\.Foreign"):
            checkpoints.find_newest_checkpoint(tmp_path, RUN)
        assert newest.is_dir() and not (tmp_path / "_set-aside").exists()


def test_the_newest_by_number_is_taken(checkpoints, tmp_path):
    for step in (2, 9, 10):
        write_checkpoint(tmp_path, step)
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(tmp_path / "checkpoint-10")


@pytest.mark.parametrize("name", ["checkpoint-7", "checkpoint-010", "checkpoint-١٠"])
def test_a_copy_under_another_name_is_not_resumed(checkpoints, tmp_path, name):
    """What is saved next at step 7 went over it; one called 010 hid the checkpoint of step 10."""
    newest = write_checkpoint(tmp_path, 3 if name == "checkpoint-7" else 10)
    write_checkpoint(tmp_path / "other", 2).rename(tmp_path / name)
    assert checkpoints.find_newest_checkpoint(tmp_path, RUN) == str(newest)
    assert (tmp_path / "_set-aside" / name).is_dir() == (name == "checkpoint-7")


def test_a_damaged_best_model_is_found_where_the_last_step_is_not_saved(checkpoints, tmp_path, monkeypatch):
    """With --save_strategy best, or no room: Trainer read it back as it was."""
    best = write_checkpoint(tmp_path, 4)
    flip_byte(best / "model.safetensors")
    seal, control = checkpoints.SealCheckpoints(RUN), make_control()
    control.should_training_stop = True
    state = make_state(global_step=8, best_global_step=4, best_model_checkpoint=str(best))
    seal.on_epoch_end(Values(output_dir=str(tmp_path), load_best_model_at_end=True), state, control)
    assert state.best_model_checkpoint is None


def test_no_checkpoint_is_no_error(checkpoints, tmp_path):
    assert checkpoints.find_newest_checkpoint(tmp_path / "none", RUN) is None


@pytest.mark.parametrize(
    ("limit", "best", "kept"), [(2, None, {7, 8}), (2, 3, {3, 8}), (1, 3, {3, 8}), (None, None, {3, 5, 7, 8})]
)
def test_old_checkpoints_go_and_nothing_else(run_folder, tmp_path, limit, best, kept):
    """Trainer takes whatever is called checkpoint-something for one of its own."""
    for step in (3, 5, 7, 8, 20):
        write_checkpoint(tmp_path, step)
    for name in ("checkpoint-best", "checkpoint-4", "checkpoint-6"):
        (tmp_path / name).mkdir()
    run_folder.rotate_checkpoints(tmp_path, 8, limit, best)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"checkpoint-{step}" for step in (*kept, 20, 4, 6, "best")}


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_half_of_one(run_folder, tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path, 3)
    monkeypatch.setattr(run_folder.shutil, "rmtree", lambda path, **_: path.exists() and {}[path])
    with pytest.raises(KeyError):
        run_folder.remove_checkpoint(folder)
    monkeypatch.undo()
    assert not folder.exists() and (tmp_path / "_removed-checkpoint-3").is_dir()
    run_folder.claim_folder(tmp_path, "owner/model")
    assert {path.name for path in tmp_path.iterdir()} == {"_train.lock"}


def test_an_old_checkpoint_that_cannot_be_removed_stays(run_folder, tmp_path, monkeypatch, capsys):
    """Somebody else's, or one in a snapshot: the run ended, in the middle of its training."""
    first, second = (write_checkpoint(tmp_path, step) for step in (3, 5))
    for step in (7, 8):
        write_checkpoint(tmp_path, step)
    rename = Path.rename

    def refuse(path, target):
        if path == first:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    for step in (7, 8):
        run_folder.rotate_checkpoints(tmp_path, step, 1, None)
    assert capsys.readouterr().out == f"{first} stays: it cannot be removed (Operation not permitted)\n"
    assert (
        first.is_dir()
        and not second.exists()
        and {path.name for path in tmp_path.iterdir()}
        == {
            "checkpoint-3",
            "checkpoint-8",
        }
    )


def test_a_folder_that_takes_no_files_is_one_line(run_folder, tmp_path, monkeypatch):
    def refuse(code):
        def make(**_):
            raise OSError(code, os.strerror(code))

        return make

    for code, words in ((errno.EROFS, "Read-only file system.*see who owns it"), (errno.ENOSPC, "free some space")):
        monkeypatch.setattr(run_folder.tempfile, "TemporaryFile", refuse(code))
        with pytest.raises(SystemExit, match=words):
            run_folder.claim_folder(tmp_path / "runs", "owner/model")
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="takes no files"):
        run_folder.claim_folder(tmp_path / "file" / "runs", "owner/model")


def test_a_file_system_without_locks_is_printed(run_folder, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(run_folder.fcntl, "lockf", refuse)
    run_folder.claim_folder(tmp_path, "owner/model")
    assert "cannot be locked (No locks available)" in capsys.readouterr().out and not run_folder.HELD


def test_a_second_run_in_one_folder_is_refused_until_the_first_is_gone(run_folder, tmp_path):
    """It removed what the first was about to save, as the rest of an interrupted save."""
    hold = f"import sys; sys.path.insert(0, {str(FRAGMENTS)!r}); import run_folder, pathlib\n"
    hold += (
        f"run_folder.claim_folder(pathlib.Path({str(tmp_path)!r}), 'owner/model'); print('locked', flush=True); input()"
    )
    first = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin and first.stdout and first.stdout.readline() == "locked\n"
    with pytest.raises(SystemExit, match="is at work there"):
        run_folder.claim_folder(tmp_path, "owner/model")
    first.kill()
    first.wait()
    run_folder.claim_folder(tmp_path, "owner/model")
    assert tmp_path.resolve() in run_folder.HELD


@pytest.mark.parametrize(
    "name", ["README.md", "config.json", "model-00001-of-00002.safetensors", "adapter_config.json"]
)
def test_a_folder_that_is_no_run_s_is_refused(run_folder, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(SystemExit, match=f"is no folder of a run, and its {name} would be replaced"):
        run_folder.claim_folder(tmp_path, "owner/model")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / "run.json").write_text("{}")  # of an earlier version
    run_folder.claim_folder(tmp_path, "owner/model")
    with pytest.raises(SystemExit, match="holds the model that training begins with"):  # one that was trained here
        run_folder.claim_folder(tmp_path, tmp_path / "." / ".." / tmp_path.name)


# ---- what makes it another run


def test_another_runs_checkpoint_is_refused_and_kept(checkpoints, tmp_path):
    folder = write_checkpoint(tmp_path, 1)
    with pytest.raises(SystemExit, match=r"seed: 42 then, 7 now"):
        checkpoints.find_newest_checkpoint(tmp_path, RUN | {"seed": 7})
    assert checkpoints.read_seal(folder)["run"] == RUN and list(tmp_path.iterdir()) == [folder]


def test_another_number_of_processes_is_another_run(checkpoints, tmp_path):
    write_checkpoint(tmp_path, 1)
    with pytest.raises(SystemExit, match=r"processes: 2 then, 4 now"):
        checkpoints.find_newest_checkpoint(tmp_path, RUN | {"processes": 4})


def test_copies_of_a_model_may_be_others(checkpoints, load, tmp_path):
    """Each has all of it. Seals of earlier versions called them processes."""
    copies = load("run_identity").COPIES
    run = {name: value for name, value in RUN.items() if name != "processes"} | {copies: 4}
    for step, before in enumerate((RUN, run | {copies: 2}), start=1):
        folder = write_checkpoint(tmp_path, step, before)
        assert checkpoints.find_newest_checkpoint(tmp_path, run) == str(folder)


def test_a_disk_without_room_leaves_the_checkpoint_out(checkpoints, tmp_path, monkeypatch, capsys):
    from torch import nn

    model = nn.Linear(1000, 1000, bias=False)
    seal, args = checkpoints.SealCheckpoints(RUN), Values(output_dir=str(tmp_path))
    assert seal.needed_bytes(model) == 3 * 4_000_000 + (16 << 20)
    for free, saves in ((seal.needed_bytes(model) - 1, False), (seal.needed_bytes(model), True)):
        monkeypatch.setattr(seal, "free_bytes", lambda folder, free=free: free)
        control = make_control()
        control.should_save = True
        seal.on_step_end(args, make_state(global_step=4), control, model=model)
        assert control.should_log and control.should_save is saves
    assert capsys.readouterr().out.count("step 4: not saved") == 1


def test_one_process_seals(checkpoints, tmp_path):
    seen: list[object] = []
    for zero in (False, True):
        (tmp_path / "checkpoint-4").mkdir(exist_ok=True)
        args, state = Values(output_dir=str(tmp_path)), make_state(global_step=4, is_world_process_zero=zero)
        checkpoints.SealCheckpoints(RUN, lambda *given: seen.append(given)).on_save(args, state, make_control())
        assert (tmp_path / "checkpoint-4" / "complete.json").exists() is zero
    assert len(seen) == 2  # what it measures may be asked of all processes


def test_a_finished_training_is_not_trained_further(checkpoints):
    end = checkpoints.EndAtLastStep()
    control = make_control()
    end.on_train_begin(None, make_state(global_step=7), control)
    with pytest.raises(checkpoints.AlreadyTrained):
        end.on_train_begin(None, make_state(global_step=8), control)
    control.should_training_stop = True  # StopEarly's
    with pytest.raises(checkpoints.AlreadyTrained):
        end.on_train_begin(None, make_state(global_step=7), control)


def describe(leaf: ModuleType, model: Path, rows: list, lora: object = None, **changed) -> dict:
    from transformers import TrainingArguments

    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "bf16": True, "use_cpu": True}
    given |= {"max_steps": 8, "report_to": "none", "learning_rate": 1e-3, "output_dir": "unused", "seed": 1}
    loss_on = changed.pop("loss_on", "all")
    wrapped = Values(dtype="torch.float32", **({"peft_config": {"default": lora}} if lora else {}))
    trainer = Values(args=TrainingArguments(**given | changed), train_dataset=rows, eval_dataset=None, model=wrapped)
    return leaf.describe_run(trainer, {"seq_len": 16, "loss_on": loss_on}, model, "sha256 0", 100)


@pytest.fixture
def base(tmp_path) -> Path:
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": 10000.0}')
    tensors = {name: torch.arange(5000, dtype=torch.float32) for name in ("a", "b")}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


CHANGES = {
    "global batch": {"gradient_accumulation_steps": 2},
    "data order": {"data_seed": 9},
    "learned from": {"loss_on": "assistant"},
    "autocast": {"bf16": False},
    "optimizer": {"optim": "adafactor"},
    "optimizer arguments": {"optim_args": "a=1"},
    "Adam": {"adam_beta2": 0.5},
    "gradient clipping": {"max_grad_norm": 0.1},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "NEFTune": {"neftune_noise_alpha": 5.0},
    "schedule": {"lr_scheduler_type": "cosine"},
    "seed": {"seed": 2, "data_seed": 1},
    "learning rate": {"learning_rate": 0.1},
    "weight decay": {"weight_decay": 0.1},
    "warmup": {"warmup_steps": 3},
    "length": {"max_steps": -1, "num_train_epochs": 2},
}


@pytest.mark.parametrize("key", CHANGES)
def test_an_argument_makes_it_another_run(load, base, key):
    leaf, rows = load("run_identity"), [{"input_ids": [1]}] * 9
    run, other = describe(leaf, base, rows, data_seed=1), describe(leaf, base, rows, **{"data_seed": 1} | CHANGES[key])
    assert {name for name in run if run[name] != other[name]} == {key}
    assert json.loads(json.dumps(run)) == run  # as it comes back from a seal
    assert key in leaf.list_changes(run, other, [key])[0]


def test_a_run_is_another_when_a_sampled_row_is(load, base):
    leaf, rows = load("run_identity"), [{"input_ids": [number]} for number in range(640)]
    run = describe(leaf, base, rows)
    assert run["global batch"] == 6 and run["autocast"] == "bf16" and run["trained parameters"] == 100
    assert describe(leaf, base, rows) == run
    assert describe(leaf, base, [{"input_ids": [9]}, *rows[1:]])["data"] != run["data"]
    assert describe(leaf, base, rows[:-1])["data"] != run["data"]
    assert run["length"] == "8 steps"


def test_one_evaluated_row_of_many_that_was_edited_is_seen(load):
    """Of 640 rows every tenth was compared, and the best model was chosen among losses of different rows."""
    from torch.utils.data import Subset

    leaf, rows = load("run_identity"), [{"input_ids": [number]} for number in range(640)]
    args = Values(metric_for_best_model="eval_loss", greater_is_better=False)
    edited = [*rows[:5], {"input_ids": [7]}, *rows[6:]]
    assert leaf.describe_measure(args, edited) == leaf.describe_measure(args, rows)
    now, then = ({leaf.EVALUATED: leaf.hash_evaluated_rows(args, each)} for each in (edited, rows))
    assert leaf.list_changes(then, now, leaf.COMPARED) and not leaf.list_changes({}, now, leaf.COMPARED)
    filled = load("evaluation").FilledRows(Subset(rows, range(640)), 9)  # of several processes
    assert leaf.hash_evaluated_rows(args, filled) == then[leaf.EVALUATED]
    assert leaf.hash_evaluated_rows(Values(metric_for_best_model=None), rows) == "none"


def test_a_run_is_another_when_its_adapter_is(load, base):
    peft = pytest.importorskip("peft")
    leaf, start = load("run_identity"), {"r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    run = describe(leaf, base, [1], peft.LoraConfig(**start))
    assert run["LoRA"] == "rank 8, alpha 16, dropout 0, bias none, on q_proj v_proj"
    for change in ({"r": 4}, {"lora_alpha": 8}, {"lora_dropout": 0.1}, {"target_modules": "all-linear"}):
        assert describe(leaf, base, [1], peft.LoraConfig(**start | change))["LoRA"] != run["LoRA"], change
    more = peft.LoraConfig(**start, modules_to_save=["score"], use_rslora=True)
    assert describe(leaf, base, [1], more)["LoRA"].count("use_rslora, also trained score") == 1


def test_a_run_is_another_when_its_base_is_and_not_where_that_stands(load, base, tmp_path):
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    leaf = load("run_identity")
    before = leaf.describe_base(base, None)
    assert before.keys() == {"config of the model", "weights of the model"}
    copied = Path(shutil.copytree(base, tmp_path / "copied"))
    (copied / "config.json").write_text(json.dumps(json.loads((copied / "config.json").read_text()), indent=4))
    assert leaf.describe_base(copied, None) == before
    tensors = load_file(copied / "model.safetensors")
    save_file(tensors | {"b": tensors["b"] + 1e-3 * torch.ones(5000)}, copied / "model.safetensors", {"format": "pt"})
    assert leaf.describe_base(copied, None)["weights of the model"] != before["weights of the model"]
    (copied / "config.json").write_text('{"model_type": "llama", "rope_theta": 20000.0}')
    assert leaf.describe_base(copied, None)["config of the model"] != before["config of the model"]
    assert leaf.describe_base(copied / "config.json", None).keys() == {"config of the model"}  # from random weights


def test_shards_are_those_of_the_index(load, base):
    leaf, index = load("run_identity"), {"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}}
    (base / "model.safetensors").rename(base / "one.safetensors")
    (base / "two.safetensors").write_bytes((base / "one.safetensors").read_bytes())
    (base / "consolidated.safetensors").write_bytes(b"is not read")
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    assert leaf.list_weights(base) == [base / "one.safetensors", base / "two.safetensors"]
    one = leaf.describe_base(base, None)
    flip_byte(base / "two.safetensors", 0.75)
    assert leaf.describe_base(base, None) != one


@pytest.mark.parametrize("key", ["weight decay", "schedule", "Adam", "LoRA", "weights of the model", "label smoothing"])
def test_what_a_resumed_run_could_not_follow_is_refused(checkpoints, tmp_path, key):
    run = RUN | {key: "a"}
    write_checkpoint(tmp_path, 1)
    assert checkpoints.find_newest_checkpoint(tmp_path, run)  # a seal of an earlier version does not have it
    checkpoints.write_seal(tmp_path / "checkpoint-1", run)
    with pytest.raises(SystemExit, match=f"{key}: a then, b now"):
        checkpoints.find_newest_checkpoint(tmp_path, RUN | {key: "b"})


def resume(checkpoints, folder: Path, run: dict, *, rate: float, step: int, steps: int):
    """The scheduler of a run of ``steps`` steps that goes on at ``step`` of one of 4 steps at 0.001."""
    from torch import nn, optim
    from transformers import get_linear_schedule_with_warmup

    def make(rate: float, steps: int):
        return get_linear_schedule_with_warmup(optim.SGD(nn.Linear(1, 1).parameters(), rate), 0, steps)

    first, second = make(1e-3, 4), make(rate, steps)
    for _ in range(step):
        first.optimizer.step()
        first.step()
    second.load_state_dict(first.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    args = Values(output_dir=str(folder), learning_rate=rate)
    state = make_state(global_step=step, max_steps=steps)
    checkpoints.FollowArguments(run).on_train_begin(args, state, make_control(), lr_scheduler=second)
    return second


SEALED = RUN | {"learning rate": 1e-3, "warmup": 0, "length": "4 steps", "changes": []}


def test_a_resumed_run_follows_its_arguments_and_prints_it(checkpoints, tmp_path, capsys):
    """Trainer loads the saved rate: the first step of a longer run was taken at 0, a lower rate was left out."""
    for step in (2, 4):
        write_checkpoint(tmp_path, step, SEALED)
    run = dict(SEALED)
    assert resume(checkpoints, tmp_path, run, rate=1e-3, step=2, steps=4).get_last_lr() == [0.5e-3]
    assert run["changes"] == [] and capsys.readouterr().out == ""

    run = SEALED | {"length": "8 steps"}
    assert resume(checkpoints, tmp_path, run, rate=1e-3, step=4, steps=8).get_last_lr() == [0.5e-3]
    assert run["changes"] == ["from step 4 on: length: 4 steps then, 8 steps now"]

    run = SEALED | {"learning rate": 1e-4}
    scheduler = resume(checkpoints, tmp_path, run, rate=1e-4, step=2, steps=4)
    assert scheduler.get_last_lr() == [pytest.approx(0.5e-4)]
    scheduler.optimizer.step()
    scheduler.step()
    assert scheduler.optimizer.param_groups[0]["lr"] == pytest.approx(0.25e-4)
    assert "from step 2 on: learning rate: 0.001 then, 0.0001 now" in capsys.readouterr().out


def test_a_learning_rate_for_a_finished_run_is_refused(checkpoints, tmp_path):
    write_checkpoint(tmp_path, 4, SEALED)
    with pytest.raises(SystemExit, match=r"learning rate: 0\.001 then, 0\.1 now"):
        resume(checkpoints, tmp_path, SEALED | {"learning rate": 0.1}, rate=0.1, step=4, steps=4)
    resume(checkpoints, tmp_path, SEALED | {"length": "3 steps"}, rate=1e-3, step=4, steps=3)


# ---- the end of a run


def test_the_best_model_is_found_where_the_run_was_moved_to_and_compared_before_it_is_read(
    checkpoints, tmp_path, capsys
):
    args = Values(output_dir=str(tmp_path), save_total_limit=3, load_best_model_at_end=True)
    seal = checkpoints.SealCheckpoints(RUN)
    best = write_checkpoint(tmp_path, 4)
    state = make_state(global_step=6, best_global_step=4, best_model_checkpoint="/before/checkpoint-4")
    seal.on_train_begin(args, state, make_control())
    assert state.best_model_checkpoint == str(best) and args.save_total_limit is None and seal.limit == 3
    seal.on_train_begin(args, state, make_control())
    assert seal.limit == 3  # Trainer may begin again with a smaller batch
    flip_byte(best / "model.safetensors")
    control = make_control()
    (tmp_path / "checkpoint-6").mkdir()
    seal.on_save(args, state, control)
    assert state.best_model_checkpoint == str(best)  # it is not read yet
    control.should_training_stop = True
    seal.on_save(args, state, control)
    assert state.best_model_checkpoint is None
    assert "checkpoint-4, the best model, is not as it was saved: the last one is kept" in capsys.readouterr().out


def write_draft(leaf: ModuleType, folder: Path, *names: str) -> Path:
    draft = folder / leaf.DRAFT
    for name in names:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(f"new {name}")
    return draft


def test_a_model_takes_the_place_of_the_one_before_and_of_nothing_else(load, tmp_path):
    leaf = load("final_model")
    for name in ("model.safetensors", "run.json", "config.json", "model-mine.safetensors", "notes.txt"):
        (tmp_path / name).write_text("old")
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
    leaf.publish(write_draft(leaf, tmp_path, "config.json", "templates/a.jinja", *shards), tmp_path)
    old = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.read_text() == "old"}
    assert old == {"model-mine.safetensors", "notes.txt"} and not (tmp_path / leaf.DRAFT).exists()
    assert (tmp_path / "templates" / "a.jinja").is_file() and (tmp_path / shards[0]).is_file()


def test_a_run_is_finished_with_its_report_and_its_model(load, tmp_path, capsys):
    leaf, state = load("final_model"), make_state(global_step=8)
    assert not leaf.is_complete(tmp_path, state)
    for text in ("{", "[]", '{"finished_step": 4}', '{"finished_step": 8}'):
        (tmp_path / "run.json").write_text(text)
        assert not leaf.is_complete(tmp_path, state)
    (tmp_path / "adapter_model.safetensors").write_text("")
    assert leaf.is_complete(tmp_path, state)
    assert "reached the last step, 8; a larger --max_steps" in capsys.readouterr().out
    (tmp_path / "run.json").write_text('{"finished_step": 4}')
    assert leaf.is_complete(tmp_path, make_state(global_step=4))
    assert "ended by early stopping at step 4" in capsys.readouterr().out


@pytest.fixture
def stop_early(load):
    return load("evaluation").StopEarly


def test_early_stopping_counts_on_after_a_restart_and_ends_there_again(stop_early, capsys):
    args = Values(load_best_model_at_end=True, metric_for_best_model="eval_loss", eval_strategy="steps")
    args = Values(**vars(args), greater_is_better=False, save_strategy="steps")
    state, control = make_state(global_step=2, best_metric=1.0), make_control()
    first = stop_early(early_stopping_patience=2)
    first.on_train_begin(args, make_state(), control)
    first.on_evaluate(args, state, control, {"eval_loss": 2.0})
    assert not control.should_training_stop and not control.should_save
    saved = {"StopEarly": json.loads(json.dumps(first.state()))}

    resumed, state = stop_early(early_stopping_patience=2), make_state(global_step=2, best_metric=1.0)
    state.stateful_callbacks = saved
    resumed.on_train_begin(args, state, control)
    assert not control.should_training_stop
    state.global_step = 4
    resumed.on_evaluate(args, state, control, {"eval_loss": 2.0})
    assert control.should_training_stop and control.should_save
    assert "step 4: stopped early, 2 evaluations without a better eval_loss" in capsys.readouterr().out

    state.stateful_callbacks = {"StopEarly": json.loads(json.dumps(resumed.state()))}
    for patience, ends in ((2, True), (3, False)):  # config.yaml may have been changed since
        again = make_control()
        stop_early(early_stopping_patience=patience).on_train_begin(args, state, again)
        assert again.should_training_stop == ends
    without = make_control()
    resumed.on_evaluate(Values(**vars(args) | {"save_strategy": "no"}), state, without, {"eval_loss": 2.0})
    assert without.should_training_stop and not without.should_save
