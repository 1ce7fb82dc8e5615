"""Slurm on two hosts (hosts.py): its programs as Debian packs them, unpacked into a folder, with no service of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts import NAMES, Hosts

CONFIG = """ClusterName=tests
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=15
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName={names} CPUs=2 CoresPerSocket=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""A job that is queued again waits for cred_expire, by default two minutes."""
CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint={folder}/cgroup\n"
"""Of which it uses none, and wants some."""


@dataclass(frozen=True, slots=True)
class Slurm:
    hosts: Hosts
    environment: dict[str, str]

    def start(self, host: str, *words: object) -> subprocess.Popen:
        return subprocess.Popen([self.hosts.tools / "on", host, *map(str, words)], env=self.environment)

    def ask(self, *words: object, folder: Path | None = None) -> str:
        """What a program of Slurm's says on the first host."""
        command = [self.hosts.tools / "on", NAMES[0], *map(str, words)]
        done = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@contextmanager
def start_slurm(hosts: Hosts, unpacked: Path, folder: Path) -> Iterator[Slurm]:
    """Its daemons end with the hosts."""
    libraries = unpacked / "usr/lib/x86_64-linux-gnu"
    for name in ("state", "cgroup", *(f"spool-{host}" for host in NAMES)):
        (folder / name).mkdir(parents=True)
    places = {"folder": folder, "plugins": libraries / "slurm-wlm", "first": NAMES[0], "names": ",".join(NAMES)}
    (folder / "slurm.conf").write_text(CONFIG.format(**places))
    (folder / "cgroup.conf").write_text(CGROUPS.format(**places))
    paths = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
        "PATH": f"{unpacked}/usr/bin:{os.environ['PATH']}",
    }
    slurm = Slurm(hosts, os.environ | paths)
    slurm.start(NAMES[0], unpacked / "usr/sbin/slurmctld-wlm", "-D", "-c")
    for name in NAMES:
        slurm.start(
            name, unpacked / "usr/sbin/slurmd-wlm", "-D", "-N", name, "-d", unpacked / "usr/sbin/slurmstepd-wlm"
        )
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(1)
        done = subprocess.run(
            [hosts.tools / "on", NAMES[0], "sinfo", "-h", "-o", "%T %D"], env=slurm.environment, capture_output=True
        )
        if done.stdout.split() == [b"idle", b"2"]:
            break
    yield slurm
