"""`perfgen update` of a project whose answers name a repository that came with it: git is asked, nothing of it is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from git_command import GIT

from generator.emit.base import TEMPLATE, Origin, export_template
from generator.emit.git_files import read_files
from generator.emit.render import render

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, "-C", folder, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path) -> Path:
    """A template of two files, of which one runs; its commit is v1."""
    folder = tmp_path / "project" / "template"
    (folder / "templates").mkdir(parents=True)
    (folder / "copier.yml").write_text("_subdirectory: templates\n")
    (folder / "templates" / "a b.sh").write_text("echo\n")
    (folder / "templates" / "a b.sh").chmod(0o755)
    git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("* filter=evil\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    git(folder, "tag", "v1")
    return folder


def test_a_commit_is_read_with_modes(repository, tmp_path):
    (repository / "copier.yml").write_text("changed since\n")
    with export_template(Origin("template", "v1"), tmp_path / "project") as root:
        assert root is not None
        assert (root / "copier.yml").read_text() == "_subdirectory: templates\n"
        assert os.access(root / "templates" / "a b.sh", os.X_OK)
    with export_template(Origin("template", "v2"), tmp_path / "project") as root:
        assert root is None


def test_no_filter_of_the_repository_runs(repository, tmp_path):
    git(repository, "config", "filter.evil.smudge", f"touch {tmp_path}/CANARY; cat")
    assert read_files(repository, "v1", TEMPLATE) is not None
    assert not (tmp_path / "CANARY").exists()


def test_a_missing_object_is_not_fetched(repository, tmp_path):
    """A partial clone fetches what it lacks, by a command that its configuration names."""
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/CANARY\n")
    evil.chmod(0o755)
    for name, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", str(tmp_path)),
        ("remote.origin.uploadpack", str(evil)),
        ("protocol.allow", "always"),
    ):
        git(repository, "config", name, value)
    sha = git(repository, "rev-parse", "v1:copier.yml").strip()
    (repository / ".git" / "objects" / sha[:2] / sha[2:]).unlink()
    assert read_files(repository, "v1", TEMPLATE) is None
    assert not (tmp_path / "CANARY").exists()


def test_git_of_the_working_folder_is_not_run(repository, tmp_path, monkeypatch):
    (tmp_path / "git").write_text(f"#!/bin/sh\ntouch {tmp_path}/CANARY\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for entry in ("", "."):
        monkeypatch.setenv("PATH", os.pathsep.join([entry, os.environ["PATH"]]))
        assert read_files(repository, "v1", TEMPLATE) is not None
    assert not (tmp_path / "CANARY").exists()


def test_a_hook_s_repository_is_not_taken_for_it(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert read_files(repository, "v1", TEMPLATE) is not None


@pytest.mark.parametrize("commit", ["", "--help", "-h", "v1:templates/../..", "no such"])
def test_what_is_no_commit(repository, commit):
    assert read_files(repository, commit, TEMPLATE) is None


def test_a_link_of_the_repository_is_no_file_of_a_template(repository):
    (repository / "templates" / "link").symlink_to("/etc/passwd")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "link")
    assert read_files(repository, "HEAD", TEMPLATE) is None


def test_a_project_is_written_without_git(tmp_path, monkeypatch):
    """Copier asks git after each file: 70 programs for a training's."""
    started = []

    class Counted(subprocess.Popen):
        def __init__(self, command, *args, **more):
            started.append(command)
            super().__init__(command, *args, **more)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    plan = Path(__file__).resolve().parents[1] / "examples" / "portable" / "project" / "plan.json"
    assert render(json.loads(plan.read_text(encoding="utf-8")), tmp_path)
    assert [command for command in started if "git" in str(command[0])] == []
    assert subprocess.run(["git", "--version"], check=True, capture_output=True).stdout and started
