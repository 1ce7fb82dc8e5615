"""abandoned_builds.py: the lock of a build that was killed is not waited for; one that is held is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from leaves import load_leaf


@pytest.fixture
def builds(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    module = load_leaf("abandoned_builds")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    return module


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "py311_cu130" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True)
    return path


def test_a_lock_that_nobody_holds_is_removed(builds, lock, capsys):
    """As PyTorch leaves it where the process that builds is killed."""
    code = "import os, sys; from torch.utils.file_baton import FileBaton; FileBaton(sys.argv[1]).try_acquire(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, lock]).returncode == 9
    assert lock.exists()
    builds.release_abandoned_builds(nodes=1)
    assert not lock.exists() and f"{lock} was left by a build that was ended" in capsys.readouterr().out


def test_a_lock_that_is_held_is_left(builds, lock, capsys):
    from torch.utils.file_baton import FileBaton

    baton = FileBaton(str(lock))
    assert baton.try_acquire()
    os.utime(lock, (0, 0))  # old as it may be
    builds.release_abandoned_builds(nodes=1)
    builds.release_abandoned_builds(nodes=2)
    assert lock.exists() and not capsys.readouterr().out
    baton.release()


def test_another_node_may_build_until_the_lock_is_old(builds, lock, monkeypatch, capsys):
    lock.touch()
    monkeypatch.setattr(builds, "ELSEWHERE_SECONDS", 0.3)
    begun = time.monotonic()
    builds.release_abandoned_builds(nodes=2)
    assert time.monotonic() - begun >= 0.2 and not lock.exists()
    said = capsys.readouterr().out.splitlines()
    assert "no process of this machine holds it" in said[0] and "was left by a build" in said[1]


def test_a_run_of_one_node_leaves_what_another_may_build_in_a_home_of_both(builds, lock, monkeypatch):
    """Each is one node; the lock of the other's process is seen, and the process is not."""
    disks = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(lock.parents[2]), fstype="nfs4"),
    ]
    monkeypatch.setattr(builds.psutil, "disk_partitions", lambda all: disks)
    lock.touch()
    monkeypatch.setattr(builds, "ELSEWHERE_SECONDS", 0.3)
    begun = time.monotonic()
    builds.release_abandoned_builds(nodes=1)
    assert time.monotonic() - begun >= 0.2 and not lock.exists()


def test_the_disk_of_this_machine_is_known(builds, tmp_path):
    assert builds.is_local(tmp_path / "lock")


def test_the_other_node_removes_it_when_it_is_ready(builds, lock, monkeypatch, capsys):
    lock.touch()
    monkeypatch.setattr(builds.time, "sleep", lambda _: lock.unlink())
    builds.release_abandoned_builds(nodes=2)
    assert "was left by a build" not in capsys.readouterr().out
