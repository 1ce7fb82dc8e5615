"""One writer of a folder at a time; what a killed one left goes, what lives or is another's stays; umask is kept."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from generator.emit import place
from generator.errors import DestinationError
from generator.inputs import held

ROOT = Path(__file__).resolve().parents[1]
INIT = (sys.executable, "-m", "generator.cli", "init")
SAMPLE = ("--sample", "--offline", "--hardware", "cpu:2", "--no-smoke")
linux = pytest.mark.skipif(sys.platform != "linux", reason="locks of folders as on Linux")


def start(code: str, *words: object, **options) -> subprocess.Popen:
    """Another Python that runs ``code`` up to its first line of output."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline()
    return process


HOLDER = """
    import sys
    from pathlib import Path
    from generator.emit import place
    with place.lock_destination(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
"""


def test_the_second_writer_is_refused_and_the_first_is_named(tmp_path):
    target = tmp_path / "deep" / "new"
    holder = start(HOLDER, target)
    with (
        pytest.raises(DestinationError, match=rf"being written by another perfgen \(process {holder.pid}\)") as refused,
        place.lock_destination(target),
    ):
        pass
    assert refused.value.code == 5
    with place.lock_destination(tmp_path / "other"):  # of this folder alone
        pass
    holder.communicate("go\n")
    with place.lock_destination(target):
        assert [p.name for p in target.parent.iterdir()] == [".new.perfgen-lock"]
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_writer_is_taken_over(tmp_path):
    holder = start(HOLDER, tmp_path / "new")
    holder.kill()
    holder.wait()
    assert (tmp_path / ".new.perfgen-lock").exists()
    with place.lock_destination(tmp_path / "new"):
        assert (tmp_path / ".new.perfgen-lock").read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_goes_while_it_is_opened_is_opened_again(tmp_path, monkeypatch):
    """Its holder ends between the opening and the locking: the file in our hand then has no name any more."""
    path, real = tmp_path / ".new.perfgen-lock", held.open_lock_file
    opened = []

    def open_and_lose(path):
        handle = real(path)
        opened.append(handle)
        if len(opened) == 1:
            path.unlink()
        return handle

    monkeypatch.setattr(held, "open_lock_file", open_and_lose)
    with place.lock_destination(tmp_path / "new"):
        assert len(opened) == 2 and path.read_text() == f"{os.getpid()}\n"


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("x")
    (tmp_path / ".new.perfgen-lock").symlink_to(precious)
    with pytest.raises(DestinationError, match="cannot write beside"), place.lock_destination(tmp_path / "new"):
        pass
    assert precious.read_text() == "x"


def test_where_no_lock_may_be_made_that_is_what_is_said(tmp_path, monkeypatch):
    """`perfgen update` of another user's project: 'No such file or directory'."""
    real = os.open

    def refuse(path, flags, mode=0o777):
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        held.open_lock_file(tmp_path / "lock")


def test_a_pipe_in_the_place_of_the_lock_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / ".new.perfgen-lock")
    try:
        with place.lock_destination(tmp_path / "new"):
            pass
    except DestinationError:
        pass


@linux
def test_of_four_that_write_to_one_folder_at_once_one_does(tmp_path):
    target = tmp_path / "new"
    many = [
        subprocess.Popen(
            [*INIT, target, *SAMPLE], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    errors = [process.communicate(timeout=300)[1] for process in many]
    codes = [process.returncode for process in many]
    assert sorted(codes) == [0, 5, 5, 5], errors
    for code, text in zip(codes, errors, strict=True):
        assert code == 0 or "another perfgen (process " in text or "already holds a project" in text, text
    assert [p.name for p in tmp_path.iterdir()] == ["new"] and (target / place.MARK).is_file()


STAGED = """
    import sys
    from pathlib import Path
    from generator.emit import place
    from generator.inputs.held import make_scratch
    with place.make_staging(Path(sys.argv[1])) as stage, make_scratch() as scratch:
        (stage / "half").write_text("x")
        (scratch / "half").write_text("x")
        print("ready", flush=True)
        sys.stdin.readline()
"""


@linux
def test_what_a_killed_run_left_goes_and_what_lives_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "t").mkdir()
    killed, alive = start(STAGED, tmp_path / "new"), start(STAGED, tmp_path / "new")
    killed.kill()
    killed.wait()
    stages, scratches = sorted(tmp_path.glob(".new.perfgen-*")), sorted((tmp_path / "t").iterdir())
    assert len(stages) == len(scratches) == 2
    with place.make_staging(tmp_path / "new") as stage, held.make_scratch() as scratch:
        assert sorted(tmp_path.glob(".new.perfgen-*")) == sorted(
            {stage, *(s for s in stages if str(alive.pid) in s.name)}
        )
        assert {p.name for p in (tmp_path / "t").iterdir()} == {
            scratch.name,
            *(p.name for p in scratches if f"-{alive.pid}-" in p.name),
        }
    alive.communicate("go\n")
    assert not [*tmp_path.glob(".new.perfgen-*"), *(tmp_path / "t").iterdir()]


@linux
def test_a_pid_that_is_used_again_keeps_nothing_alive(tmp_path):
    """And a lock that is held keeps a folder whose pid, of another container, is nobody's here."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path / "left"
    folder.mkdir()
    assert not held.is_abandoned(folder, os.getppid()), "somebody may have made it a moment ago"
    assert held.is_abandoned(folder, ended.pid)
    with held.hold_folder(folder):
        assert not held.is_abandoned(folder, ended.pid) and not held.is_abandoned(folder, os.getpid())


@linux
def test_old_folders_whose_pid_is_used_again_go(tmp_path, monkeypatch):
    folder = tmp_path / "left"
    folder.mkdir()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + held.FRESH_S + 1)
    assert held.is_abandoned(folder, os.getppid())


@linux
def test_where_folders_cannot_be_locked_a_day_must_pass(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(9, "Bad file descriptor")

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder, now = tmp_path / "left", time.time()
    folder.mkdir()
    monkeypatch.setattr(held.fcntl, "flock", refuse)
    assert not held.is_abandoned(folder, ended.pid)
    monkeypatch.setattr(time, "time", lambda: now + 2 * held.DAY_S)
    assert held.is_abandoned(folder, ended.pid) and not held.is_abandoned(folder, os.getppid())


@linux
def test_links_files_and_folders_of_others_are_left_alone(tmp_path, monkeypatch):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("x")
    scratch = tmp_path / "t"
    scratch.mkdir()
    dead = 2**22 + 1  # above the largest pid of Linux
    (scratch / f"perfgen-{dead}-linklink").symlink_to(precious)
    (scratch / f"perfgen-{dead}-filefile").write_text("x")
    (scratch / f"perfgen-{dead}-foldered").mkdir()
    (scratch / f"perfgen-{dead}-toolongname").mkdir()
    (scratch / "perfgen-results").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    held.sweep_scratch(scratch)
    assert len(list(scratch.iterdir())) == 5, "another's"
    monkeypatch.undo()
    held.sweep_scratch(scratch)
    left = {p.name for p in scratch.iterdir()}
    assert left == {f"perfgen-{dead}-{end}" for end in ("linklink", "filefile", "toolongname")} | {"perfgen-results"}
    assert (precious / "thesis").read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="permissions as on Unix")
@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022], ids=oct)
def test_umask_is_kept(tmp_path, umask):
    place_of_cache = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [*INIT, tmp_path / "deep" / "new", *SAMPLE]
    subprocess.run(command, cwd=tmp_path, env=place_of_cache, umask=umask, check=True, capture_output=True)
    command = [sys.executable, "-m", "generator.cli", "detect", "--capture", tmp_path / "capture"]
    subprocess.run(command, cwd=tmp_path, env=place_of_cache, umask=umask, check=True, capture_output=True)
    for path in tmp_path.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, (path, oct(mode))


def test_replacing_off_a_terminal_names_the_flag(tmp_path):
    subprocess.run([*INIT, tmp_path / "new", *SAMPLE], cwd=ROOT, check=True, capture_output=True)
    command = [*INIT, tmp_path / "new", *SAMPLE, "--overwrite"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--yes" in done.stderr and "interrupted" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
    done = subprocess.run([*command, "--yes"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0 and sorted(p.name for p in tmp_path.iterdir()) == ["new", "new.old-1"]


@linux
@pytest.mark.slow
def test_kill_at_any_moment_leaves_nothing_for_ever(tmp_path):
    """kill -9, later and later; the next run removes what was left, beside the project and among the temporary files."""
    scratch = tmp_path / "t"
    scratch.mkdir()
    env = os.environ | {"TMPDIR": str(scratch)}
    for step in range(40):
        process = subprocess.Popen(
            [*INIT, tmp_path / "p" / "new", *SAMPLE],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.3 + 0.1 * step)
        process.kill()
        process.wait()
        if (tmp_path / "p" / "new").exists():
            break
    else:
        raise AssertionError("it never got through")
    again = [*INIT, tmp_path / "p" / "new", *SAMPLE, "--overwrite", "--yes"]
    subprocess.run(again, cwd=ROOT, env=env, check=True, capture_output=True)
    assert {p.name for p in (tmp_path / "p").iterdir()} == {"new", "new.old-1"} and not list(scratch.iterdir())
