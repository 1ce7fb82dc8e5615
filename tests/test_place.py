"""The destination: refused at the door, or the old folder, or the new one; never a mix."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from generator.emit import place
from generator.errors import DestinationError


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
    assert outcomes == {"old", "new"}
    assert os.getpid()
