"""The destination: refused at the door, or the old folder, or the new one; never a mix."""

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from types import SimpleNamespace

import pytest

from generator.emit import place
from generator.errors import DestinationError
from generator.inputs.held import make_scratch


def project(path, text="old"):
    path.mkdir()
    (path / place.MARK).write_text(text)
    (path / "train.py").write_text(text)
    return path


def test_absent_and_empty_folders_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    assert place.resolve_destination(tmp_path / "new", overwrite=False) == (tmp_path / "new").resolve()
    assert place.resolve_destination(tmp_path / "empty", overwrite=False)


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "-rf",
        "a\nb",
        "{{ 7*7 }}",
        "$(touch x)",
        "`id`",
        "\u202e",
        "x" * 101,
        "CON",
        "nul.txt",
        "end.",
        "é",
        "~",
        ".",
        "/",
        "a\0b",
        ".hidden",
    ],
)
def test_names_that_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DestinationError):
        place.resolve_destination((tmp_path / name) if name not in (".", "/") else type(tmp_path)(name), overwrite=True)


@pytest.mark.parametrize(
    "name",
    ["https://user:word@host/project", "s3://bucket/project", "git+ssh://host/p", "me:word@host:/p", "me@host:p"],
)
def test_an_address_is_no_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DestinationError, match="DEST is an address") as caught:
        place.resolve_destination(type(tmp_path)(name), overwrite=False)
    assert "word" not in str(caught.value) and not any(tmp_path.iterdir())


def test_a_file_a_full_folder_and_a_project_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    project(tmp_path / "mine")
    for name, words in (("file", "is a file"), ("full", "not empty"), ("mine", "already holds")):
        with pytest.raises(DestinationError, match=words):
            place.resolve_destination(tmp_path / name, overwrite=False)
    with pytest.raises(DestinationError, match="not empty"):
        place.resolve_destination(tmp_path / "full", overwrite=True)
    assert place.resolve_destination(tmp_path / "mine", overwrite=True)


def test_a_link_is_resolved(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert place.resolve_destination(tmp_path / "link", overwrite=False) == (tmp_path / "real").resolve()


def test_landing_on_a_project_keeps_the_old_one_beside_it(tmp_path):
    target = project(tmp_path / "mine")
    with place.make_staging(target) as stage:
        (stage / "train.py").write_text("new")
        backup = place.land_tree(stage, target)
    assert (target / "train.py").read_text() == "new"
    assert (backup / "train.py").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "mine.old-1"]


@pytest.mark.parametrize("swaps", [True, False])
def test_a_backup_never_takes_a_name_that_is_taken(tmp_path, monkeypatch, swaps):
    """A link to nothing has a name too."""
    if not swaps:
        monkeypatch.setattr(place, "swap_folders", lambda *_: False)
    target = project(tmp_path / "mine")
    (tmp_path / "mine.old-1").symlink_to(tmp_path / "gone")
    (tmp_path / "mine.old-2").write_text("x")
    with place.make_staging(target) as stage:
        (stage / "train.py").write_text("new")
        backup = place.land_tree(stage, target)
    assert backup.name == "mine.old-3" and (backup / "train.py").read_text() == "old"
    assert (target / "train.py").read_text() == "new"


@pytest.mark.parametrize("swaps", [True, False])
def test_a_backup_name_that_is_taken_at_the_last_moment(tmp_path, monkeypatch, swaps):
    if not swaps:
        monkeypatch.setattr(place, "swap_folders", lambda *_: False)
    target, exists = project(tmp_path / "mine"), os.path.lexists
    asked = []

    def take_name(path):
        """Free when it is looked at, another's backup when it is used."""
        asked.append(path)
        if len(asked) > 1:
            return exists(path)
        project(path, "theirs")
        return False

    monkeypatch.setattr(os.path, "lexists", take_name)
    with place.make_staging(target) as stage:
        (stage / "train.py").write_text("new")
        backup = place.land_tree(stage, target)
    texts = {p.name: (p / "train.py").read_text() for p in tmp_path.iterdir()}
    assert texts == {"mine": "new", "mine.old-1": "theirs", backup.name: "old"}


RACER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from generator.emit import place
    target, text = Path(sys.argv[1]), sys.argv[2]
    with place.make_staging(target) as stage:
        (stage / place.MARK).write_text(text)
        (stage / "train.py").write_text(text)
        print("ready", flush=True)
        sys.stdin.readline()
        print(place.land_tree(stage, target))
""")


def test_projects_that_land_at_the_same_time_are_all_kept(tmp_path):
    target = project(tmp_path / "mine")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(target), text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for text in ("a", "b", "c", "d")
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    backups = {racer.communicate()[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 4
    assert {str(p) for p in tmp_path.iterdir()} == {str(target), *backups} and len(backups) == 4
    assert sorted((p / "train.py").read_text() for p in tmp_path.iterdir()) == ["a", "b", "c", "d", "old"]


def test_an_old_folder_that_cannot_be_replaced_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "swap_folders", lambda *_: False)
    target = project(tmp_path / "mine")
    move = place.move_to_free_name

    def move_and_squat(tree, beside):
        backup = move(tree, beside)
        if tree == target:
            project(target, "theirs")
        return backup

    monkeypatch.setattr(place, "move_to_free_name", move_and_squat)
    with pytest.raises(DestinationError, match=r"mine\.old-1"), place.make_staging(target) as stage:
        (stage / "train.py").write_text("new")
        place.land_tree(stage, target)
    assert (tmp_path / "mine.old-1" / "train.py").read_text() == "old"
    assert (target / "train.py").read_text() == "theirs"


def test_leftovers_of_dead_processes_are_swept_and_nothing_else(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = [f".mine.perfgen-{pid}" for pid in (ended.pid, os.getpid(), 10**30)]
    kept = [f".mine.perfgen-{end}" for end in ("²", "x", "", f"{ended.pid}x", os.getppid())] + [
        f".m.perfgen-{ended.pid}"
    ]
    for name in dead + kept:
        (tmp_path / name).mkdir()
    with place.make_staging(tmp_path / "mine"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), place.make_staging(tmp_path / "new") as stage:
        (stage / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_parent_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DestinationError), place.make_staging(tmp_path / "file" / "new"):
        pass


KILLED = textwrap.dedent("""
    import os, sys, signal
    from pathlib import Path
    from generator.emit import place
    target, after = Path(sys.argv[1]), int(sys.argv[2])
    count = 0
    def tracer(frame, event, arg):
        global count
        if frame.f_code.co_filename.endswith(("place.py",)) or frame.f_code.co_name == "<module>":
            if event == "line":
                count += 1
                if count == after:
                    os.kill(os.getpid(), signal.SIGKILL)
        return tracer
    sys.settrace(tracer)
    with place.make_staging(target) as stage:
        for name in ("a", "b", place.MARK, "train.py"):
            (stage / name).write_text("new")
        place.land_tree(stage, target)
    print("done")
""")


@pytest.mark.skipif(sys.platform != "linux", reason="kill -9 and renameat2 as on Linux")
def test_kill_at_every_line_leaves_the_old_tree_or_the_new_one(tmp_path):
    """The process is killed after 1, 2, 3 … executed lines of place.py, until one run gets through."""
    outcomes = set()
    for after in range(1, 400, 3):
        target = tmp_path / f"p{after}" / "mine"
        target.parent.mkdir()
        project(target)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(target), str(after)], capture_output=True, text=True, check=False
        )
        texts = {p.read_text() for p in target.iterdir()}
        assert texts in ({"old"}, {"new"}), after
        assert len(list(target.iterdir())) == (2 if texts == {"old"} else 4)
        outcomes |= texts
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        with place.make_staging(target):
            pass  # the next run sweeps what the killed one left
        assert not [p for p in target.parent.iterdir() if p.name.startswith(".mine.perfgen-")]
        assert "old" in {p.read_text() for p in target.parent.glob("*/train.py")}, after
    assert outcomes == {"old", "new"}
    assert os.getpid()


def test_of_two_that_write_to_one_place_the_second_is_refused(tmp_path):
    """Unasked, it moved the project of the first away to p.old-1, and both exited with 0."""
    target = tmp_path / "p"
    stages = [tmp_path / f"stage-{number}" for number in range(2)]
    for stage in stages:
        stage.mkdir()
        (stage / place.MARK).write_text(stage.name)
    assert place.land_tree(stages[0], target, overwrite=False) is None
    with pytest.raises(DestinationError, match="already holds a project"):
        place.land_tree(stages[1], target, overwrite=False)
    assert (target / place.MARK).read_text() == "stage-0" and not (tmp_path / "p.old-1").exists()


def test_a_file_system_that_syncs_no_folders_is_no_error(tmp_path, monkeypatch):
    """CIFS, and some of FUSE. A disk that fails is one."""
    real = os.fsync

    def fail(number):
        def fsync(handle):
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                raise OSError(number, os.strerror(number))
            real(handle)

        return fsync

    (tmp_path / "a").write_text("1")
    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    place.flush_tree(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        place.flush_tree(tmp_path)


def test_where_nothing_takes_temporary_files_that_is_said(monkeypatch):
    """As in a container that may only read: no file may have a byte here."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with (
            pytest.raises(DestinationError, match="no folder takes temporary files: No usable") as refused,
            make_scratch(),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "TMPDIR" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("error", "free", "raised"),
    [
        (shutil.Error([("a", "b", "[Errno 28] No space left on device")]), 0, DestinationError),
        (OSError(errno.ENOSPC, "No space left on device"), 0, DestinationError),
        (OSError(errno.ENOSPC, "No space left on device"), 1 << 30, OSError),  # of the project's own disk
    ],
)
def test_a_full_disk_of_temporary_files_is_named(monkeypatch, error, free, raised):
    """`init` with a TMPDIR of 64 kB ended in a traceback of shutil."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(raised) as refused, make_scratch() as folder:
        raise error
    assert not folder.exists() and (raised is OSError or "TMPDIR" in str(refused.value.hint))
