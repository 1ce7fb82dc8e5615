"""What becomes of each file of an update, and that a kill at any moment leaves the old or the new of each."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from endless import ENDLESS_KINDS, make_endless

from generator.emit import landing
from generator.emit.emitted import FILE, FOLDER, Emitted, read_record
from generator.emit.landing import (
    JOURNAL,
    STAGED,
    finish_landing,
    is_interrupted,
    land_files,
    list_removals,
    list_writes,
    lock_project,
)
from generator.emit.outcomes import Kind, check_markers, decide_outcomes, list_differences, read_standing
from generator.emit.place import lock_destination
from generator.errors import DestinationError, SourceError
from generator.inputs import held
from generator.run.report import RUN_SECTION, fill_section

LINES = b"".join(b"%d\n" % number for number in range(9))


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def emit(**files: bytes) -> dict[str, Emitted]:
    return {name.replace("_py", ".py").replace("__", "/"): Emitted(content) for name, content in files.items()}


def decide(folder: Path, base: dict, new: dict, rejects: bool = False):
    outcomes = decide_outcomes(folder, base, new, rejects)
    return {outcome.name: outcome for outcome in outcomes}


def land(folder: Path, base: dict, new: dict, rejects: bool = False) -> dict[str, bytes]:
    """The files after an update."""
    outcomes = decide_outcomes(folder, base, new, rejects)
    with lock_project(folder):
        land_files(folder, list_writes(outcomes), list_removals(outcomes))
    return read(folder)


def read(folder: Path) -> dict[str, bytes]:
    """The user's view: all files but those of the landing itself."""
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".perfgen" not in p.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_each_file_gets_what_it_must(tmp_path):
    names = ("same", "updated", "kept", "merged", "conflict", "dropped", "edited", "deleted")
    base = {name: Emitted(LINES) for name in names}
    mine = {
        "kept": b"mine\n" + LINES,
        "merged": b"mine\n" + LINES,
        "conflict": LINES.replace(b"4", b"mine"),
        "edited": b"x\n",
    }
    files = dict.fromkeys(names, LINES) | mine | {"runs/model.bin": b"\0", ".env": b"TOKEN=x\n"}
    del files["deleted"]
    changed = {name: Emitted(LINES.replace(b"4", b"new")) for name in ("updated", "merged", "conflict", "deleted")}
    new = {"same": Emitted(LINES), "kept": Emitted(LINES), "sub/added": Emitted(b"added\n")} | changed
    lay(tmp_path, files)

    kinds = {name: outcome.kind for name, outcome in decide(tmp_path, base, new).items()}
    assert kinds == {
        "same": Kind.SAME, "updated": Kind.UPDATED, "kept": Kind.KEPT, "merged": Kind.MERGED, "conflict": Kind.CONFLICT,
        "dropped": Kind.REMOVED, "edited": Kind.DROPPED, "deleted": Kind.DELETED, "sub/added": Kind.ADDED,
    }  # fmt: skip
    after = land(tmp_path, base, new)
    assert after["merged"] == b"mine\n" + LINES.replace(b"4", b"new")
    marked = b"<<<<<<< before updating\nmine\n=======\nnew\n>>>>>>> after updating\n"
    assert after["conflict"] == LINES.replace(b"4\n", marked)
    assert "dropped" not in after and "deleted" not in after and after["sub/added"] == b"added\n"
    untouched = ("same", "kept", "edited", "runs/model.bin", ".env")
    assert {name: after[name] for name in untouched} == {name: files[name] for name in untouched}
    backup = lay(tmp_path / ".perfgen" / "backup-1", {})
    assert {n: b for n, b in files.items() if after.get(n) != b} == read_plain(backup)
    with pytest.raises(DestinationError, match="conflict of"):
        check_markers(tmp_path, new)


def read_plain(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_rejected_lines_go_beside_the_file(tmp_path):
    lay(tmp_path, {"a": LINES.replace(b"4", b"mine")})
    after = land(tmp_path, emit(a=LINES), emit(a=LINES.replace(b"4", b"new").replace(b"0", b"zero")), rejects=True)
    assert after["a"] == LINES.replace(b"4", b"mine").replace(b"0", b"zero") and b"-mine\n+new\n" in after["a.rej"]


def test_a_file_of_the_users_own_is_never_overwritten(tmp_path):
    lay(tmp_path, {"NEWS.md": b"my news\n", "sub": b"a file where a folder would be\n", "like": b"new\n"})
    new = {"NEWS.md": Emitted(b"new\n"), "sub/x.py": Emitted(b"new\n"), "like": Emitted(b"new\n")}
    outcomes = decide(tmp_path, {}, new)
    assert [outcomes[name].kind for name in new] == [Kind.CONFLICT, Kind.CONFLICT, Kind.SAME]
    after = land(tmp_path, {}, new)
    assert after["NEWS.md"] == b"my news\n" and after["NEWS.md.perfgen-new"] == b"new\n"
    assert after["sub"] == b"a file where a folder would be\n" and after["sub-x.py.perfgen-new"] == b"new\n"


def test_links_folders_and_binaries_stay_and_are_named(tmp_path):
    lay(tmp_path / "p", {"binary": b"\0mine", "dir/x": b"mine"})
    lay(tmp_path, {"elsewhere": LINES, "far/x.py": LINES})
    (tmp_path / "p" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "p" / "sub").symlink_to(tmp_path / "far")
    names = ("binary", "dir", "link", "sub/x.py")
    base, new = ({name: Emitted(content) for name in names} for content in (LINES, b"new\n"))
    outcomes = decide(tmp_path / "p", base, new)
    assert all(outcomes[name].kind is Kind.CONFLICT for name in names)
    assert all(
        word in outcomes[name].why for name, word in zip(names, ("no text", "folder", "link", "link"), strict=True)
    )
    after = land(tmp_path / "p", base, new)
    assert after["binary"] == b"\0mine" and after["dir/x"] == b"mine"
    assert (tmp_path / "elsewhere").read_bytes() == (tmp_path / "far" / "x.py").read_bytes() == LINES
    assert all(after[f"{name.replace('/', '-')}.perfgen-new"] == b"new\n" for name in names)
    quiet = decide(tmp_path / "p", base, base)
    assert all(quiet[name].kind is Kind.KEPT for name in names), "nothing new, nothing to say"


def test_line_ends_of_windows_are_no_edit(tmp_path):
    lay(
        tmp_path,
        {"a": LINES.replace(b"\n", b"\r\n"), "b": LINES.replace(b"\n", b"\r\n"), "c": LINES.replace(b"\n", b"\r\n")},
    )
    after = land(tmp_path, emit(a=LINES, b=LINES, c=LINES), emit(a=LINES + b"new\n", b=LINES))
    assert after == {"a": (LINES + b"new\n").replace(b"\n", b"\r\n"), "b": LINES.replace(b"\n", b"\r\n")}


def test_files_of_perfgens_own_are_their_content(tmp_path):
    """A checkout with line ends of Windows, a disk on which every file may be executed."""
    own = {"plan.json": LINES.replace(b"\n", b"\r\n"), ".copier-answers.yml": LINES, "none": b""}
    for path in (lay(tmp_path, own) / name for name in own):
        path.chmod(0o755)
    base = {name: Emitted(LINES) for name in ("plan.json", ".copier-answers.yml")}
    assert {outcome.kind for outcome in decide(tmp_path, base, base).values()} == {Kind.SAME}
    new = {name: Emitted(LINES + b"new\n") for name in base}
    assert {outcome.kind for outcome in decide(tmp_path, base, new).values()} == {Kind.UPDATED}
    lay(tmp_path, {"plan.json": b"mine\n"})
    assert decide(tmp_path, base, new)["plan.json"].kind is Kind.CONFLICT


def test_the_users_mode_stays_and_a_new_one_comes(tmp_path):
    lay(tmp_path, {"mine.sh": LINES, "ours.sh": LINES, "quiet": LINES})
    (tmp_path / "mine.sh").chmod(0o755)
    (tmp_path / "quiet").chmod(0o600)
    base = {name: Emitted(LINES) for name in ("mine.sh", "ours.sh", "quiet")}
    new = {"mine.sh": Emitted(b"new\n"), "ours.sh": Emitted(b"new\n", True), "quiet": Emitted(b"new\n")}
    land(tmp_path, base, new)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in new}
    assert modes["mine.sh"] == 0o755 and modes["ours.sh"] & 0o100 and modes["quiet"] == 0o600


def test_what_a_run_wrote_into_the_report_is_no_edit_and_stays(tmp_path):
    page = b"<p>old</p>\n<!-- run:begin -->\n<p>nothing yet</p>\n<!-- run:end -->\n"
    lay(tmp_path, {"report.html": page})
    fill_section(tmp_path / "report.html", RUN_SECTION, "<p>loss 2.1</p>\n")
    assert (
        decide(tmp_path, {"report.html": Emitted(page)}, {"report.html": Emitted(page)})["report.html"].kind
        is Kind.SAME
    )
    after = land(tmp_path, {"report.html": Emitted(page)}, {"report.html": Emitted(page.replace(b"old", b"new"))})
    assert b"<p>new</p>" in after["report.html"] and b"loss 2.1" in after["report.html"]


def test_a_plan_that_was_edited_by_hand_gives_way_and_is_kept(tmp_path):
    lay(tmp_path, {"plan.json": b'{"mine": 1}'})
    base, new = {"plan.json": Emitted(b"{}")}, {"plan.json": Emitted(b'{"new": 1}')}
    after = land(tmp_path, base, new)
    assert after == {"plan.json": b'{"new": 1}', "plan.json.mine": b'{"mine": 1}'}


def test_lines_that_would_change_are_shown(tmp_path):
    lay(tmp_path, {"a": LINES})
    text = "".join(
        list_differences(tmp_path, decide_outcomes(tmp_path, emit(a=LINES), emit(a=LINES.replace(b"4", b"new"))))
    )
    assert "-4\n+new\n" in text and text.startswith("--- a (there)\n+++ a (new)\n")


OLD = {"a": b"old a\n", "b": b"old b\n", "gone/c": b"old c\n", "mine": b"mine\n"}
NEW = {"a": b"new a\n", "b": b"new b\n", "fresh/d": b"new d\n"}


def land_and_die(folder: Path, moment: int) -> bool:
    """Land NEW over OLD in a process that is killed at the given event of its work with files; whether it was."""
    child = os.fork()
    if child == 0:
        left = [moment]

        def kill(event: str, _: tuple) -> None:
            if event.startswith(("open", "os.", "shutil.")):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        try:
            with lock_project(folder):
                finish_landing(folder)
                land_files(folder, {name: (content, False) for name, content in NEW.items()}, ["gone/c"], LINKS)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


LINKS = {"data/rows": "/new"}


def lay_linked(folder: Path) -> Path:
    lay(folder, OLD)
    (folder / "data").mkdir()
    (folder / "data" / "rows").symlink_to("/old")
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a fork")
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_of_each_file(tmp_path):
    states = set()
    for moment in range(1, 1000):
        folder = lay_linked(tmp_path / str(moment))
        killed = land_and_die(folder, moment)
        there, complete = read(folder), {"mine": b"mine\n", **NEW}
        for name in {*OLD, *NEW}:
            assert there.get(name) in (OLD.get(name), complete.get(name)), (moment, name)
        begun, linked = is_interrupted(folder), (folder / "data" / "rows").readlink() == Path("/new")
        assert begun or (there, linked) in ((OLD, False), (complete, True)), moment
        assert not begun or read_plain(folder / ".perfgen" / "backup-1").items() <= OLD.items()
        states.add((begun, there == OLD, there == complete))
        with lock_project(folder):
            assert finish_landing(folder) == ()
            assert read(folder) == (complete if begun or there == complete else OLD), moment
            assert (folder / "data" / "rows").readlink() == Path("/new" if begun or linked else "/old"), moment
            land_files(folder, {name: (content, False) for name, content in NEW.items()}, [])
        assert read(folder).items() >= NEW.items() and not is_interrupted(folder)
        if not killed:
            break
    else:
        pytest.fail("never came to its end")
    assert (
        moment > 50
        and {(False, True, False), (True, True, False), (True, False, False), (False, False, True)} <= states
    )


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory) -> Path:
    """A folder in which an update was killed just before the first file was moved."""
    if not hasattr(os, "fork"):
        pytest.skip("kills a fork")
    folder = lay_linked(tmp_path_factory.mktemp("broken") / "off")
    moment = 0
    while not is_interrupted(folder):
        moment += 1
        assert land_and_die(folder, moment)
    return folder


def test_a_file_that_was_changed_after_the_kill_stays(tmp_path, broken_off):
    folder = Path(shutil.copytree(broken_off, tmp_path / "p", symlinks=True))
    lay(folder, {"b": b"mine since\n"})
    with lock_project(folder):
        assert finish_landing(folder) == ("b",)
    after = read(folder)
    assert (after["a"], after["b"], after["b.perfgen-new"]) == (b"new a\n", b"mine since\n", b"new b\n")


@pytest.mark.parametrize("name", ["../outside", "/outside", ".perfgen/lock", ".git/config"])
def test_a_journal_that_leads_elsewhere_is_refused(tmp_path, broken_off, name):
    folder = Path(shutil.copytree(broken_off, tmp_path / "p", symlinks=True))
    path = folder / ".perfgen" / landing.JOURNAL
    journal = json.loads(path.read_text())
    journal["steps"][0][0] = name
    path.write_text(json.dumps(journal))
    with pytest.raises(DestinationError, match="damaged"), lock_project(folder):
        finish_landing(folder)
    assert read(folder) == OLD and not (tmp_path / "outside").exists()


def test_only_one_at_a_time(tmp_path):
    busy = rf"written by another perfgen \(process {os.getpid()}\)"
    with lock_project(tmp_path), pytest.raises(DestinationError, match=busy), lock_project(tmp_path):
        pass
    with lock_project(tmp_path):
        pass


def test_an_update_and_an_init_that_replaces_keep_each_other_out(tmp_path):
    (tmp_path / "p").mkdir()
    for first, second in ((lock_project, lock_destination), (lock_destination, lock_project)):
        with first(tmp_path / "p"), pytest.raises(DestinationError, match="another perfgen"), second(tmp_path / "p"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_where_nobody_may_write_beside_the_project_its_own_lock_does(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "p").mkdir()
    with lock_project(tmp_path / "p"):
        assert [path.name for path in tmp_path.iterdir()] == ["p"]
        with pytest.raises(DestinationError, match="another perfgen"), lock_project(tmp_path / "p"):
            pass


def test_a_file_system_without_locks_is_no_other_update(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(held.fcntl, "flock", refuse)
    with lock_project(tmp_path):
        pass


def test_a_folder_that_is_a_link_elsewhere_is_refused(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / ".perfgen").symlink_to(tmp_path / "far")
    with pytest.raises(DestinationError, match="no folder"), lock_project(tmp_path / "p"):
        pass
    assert not any((tmp_path / "far").iterdir())


def test_only_the_last_backup_is_kept(tmp_path):
    lay(tmp_path, {"a": b"1"})
    for content in (b"2", b"3"):
        with lock_project(tmp_path):
            backup = land_files(tmp_path, {"a": (content, False)}, [])
    assert [p.name for p in (tmp_path / ".perfgen").glob("backup-*")] == ["backup-2"] and (
        backup / "a"
    ).read_bytes() == b"2"


def test_what_is_staged_is_written_in_the_project(tmp_path):
    """A link that came with a stranger's project: the file that it leads to was overwritten and taken away."""
    folder, elsewhere = lay(tmp_path / "p", {"a": LINES}), lay(tmp_path / "elsewhere", {"0": b"theirs"})
    (folder / ".perfgen").mkdir()
    (folder / ".perfgen" / "staged").symlink_to(elsewhere)
    assert land(folder, emit(a=LINES), emit(a=b"new"))["a"] == b"new"
    assert read(elsewhere) == {"0": b"theirs"}


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / ".perfgen").mkdir()
    (tmp_path / ".perfgen" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DestinationError), lock_project(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "link", ["../data/rows", "/data/rows", ".git/config", "rows", "data/../../rows", "data/a/b/rows"]
)
def test_a_journal_with_a_link_that_no_update_makes_is_refused(tmp_path, broken_off, link):
    folder = Path(shutil.copytree(broken_off, tmp_path / "p", symlinks=True))
    path = folder / ".perfgen" / landing.JOURNAL
    journal = json.loads(path.read_text()) | {"links": {link: "/new"}}
    path.write_text(json.dumps(journal))
    with pytest.raises(DestinationError, match="damaged"), lock_project(folder):
        finish_landing(folder)
    assert read(folder) == OLD


def test_no_link_is_made_behind_a_link(tmp_path, broken_off):
    folder, elsewhere = Path(shutil.copytree(broken_off, tmp_path / "p", symlinks=True)), tmp_path / "elsewhere"
    shutil.rmtree(folder / "data")
    elsewhere.mkdir()
    (folder / "data").symlink_to(elsewhere)
    with lock_project(folder):
        finish_landing(folder)
    assert not any(elsewhere.iterdir()) and read(folder)["a"] == b"new a\n"


@pytest.mark.parametrize("kind", ENDLESS_KINDS)
def test_a_record_or_journal_that_never_ends_is_not_read(tmp_path, kind):
    """A stranger's project with a pipe there hung `perfgen update`; /dev/zero filled the memory."""
    folder = lay(tmp_path / "p", {"a": b"1"})
    (folder / FOLDER).mkdir(exist_ok=True)
    make_endless(folder / FILE, kind)
    with pytest.raises(SourceError, match="is no file of at most 64 MiB"):
        read_record(folder)
    make_endless(folder / FOLDER / JOURNAL, kind)
    with pytest.raises(DestinationError, match="damaged"):
        finish_landing(folder)


def test_a_file_that_is_too_large_to_merge_is_an_obstacle(tmp_path):
    folder = lay(tmp_path / "p", {"a": b"1"})
    os.truncate(folder / "a", 1 << 40)
    assert "larger than 64 MiB" in read_standing(folder, "a").obstacle


def test_what_is_staged_is_not_taken_from_where_a_link_leads(tmp_path, broken_off):
    """Of a stranger's project: the next update moved a file of the user's out of that folder."""
    folder, mine = Path(shutil.copytree(broken_off, tmp_path / "p", symlinks=True)), tmp_path / "mine"
    staged = (folder / FOLDER / STAGED).rename(mine)
    staged.joinpath("notes").touch()
    (folder / FOLDER / STAGED).symlink_to(mine)
    before = read(mine)
    with pytest.raises(DestinationError, match="is a link"):
        finish_landing(folder)
    assert read(mine) == before and before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_what_stands_in_the_way_of_the_staging_goes(tmp_path):
    """rmtree waits for ever for a writer of a pipe, and a folder was a traceback."""
    folder = lay(tmp_path / "p", {"a": b"1"})
    (folder / FOLDER / f"{JOURNAL}.new").mkdir(parents=True)
    os.mkfifo(folder / FOLDER / STAGED)
    os.mkfifo(folder / FOLDER / "backup-1")
    land_files(folder, {"a": (b"2", False)}, [])
    assert read(folder) == {"a": b"2"} and [p.name for p in (folder / FOLDER).iterdir()] == ["backup-2"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_disk_that_gets_full_is_left_as_it_was(tmp_path, monkeypatch, error):
    """Each try left another backup of a part of the files, on the disk that was full."""
    folder = lay(tmp_path / "p", OLD)
    (folder / FOLDER).mkdir()
    land_files(folder, {"a": (b"1", False)}, [])
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    write, left = landing.write_durably, [2]

    def fill(path: Path, content: bytes) -> None:
        left[0] -= 1
        if not left[0]:
            raise error
        write(path, content)

    monkeypatch.setattr(landing, "write_durably", fill)
    with pytest.raises(type(error)):
        land_files(folder, {name: (content, False) for name, content in NEW.items()}, ["gone/c"])
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before
