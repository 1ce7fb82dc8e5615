"""Two hosts on one machine: network namespaces joined by a cable, each with a name and an /etc/hosts as Debian writes it. Needs root.

What a host has besides, as machines with Docker do: docker0 and a bridge of containers, under the same addresses on both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NAMES = ("node-1", "node-2")
NET = "10.77.0"
ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
SSH = """#!{python}
import os, signal, subprocess, sys, time
words = sys.argv[1:]
while words[0].startswith("-"):
    flag = words.pop(0)
    words = words[1:] if flag in ("-o", "-l", "-p") else words
host, *command = words
lost = {lost!r} + host
kept = {{name: os.environ[name] for name in ("PATH", "HOME")}} | {{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}}
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as of a login: the tests themselves may run under nohup
running = subprocess.Popen([{enter!r}, host, "/bin/sh", "-c", " ".join(command)], env=kept, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(running.pid, signal.SIGHUP))  # the terminal closes
while running.poll() is None:
    if os.path.exists(lost):  # ServerAliveInterval: the other end runs on, if it runs at all
        print("Timeout, server", host, "not responding.", file=sys.stderr)
        sys.exit(255)
    time.sleep(0.1)
sys.exit(running.returncode)
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    folder: Path
    prefix: str

    @property
    def tools(self) -> Path:
        """To be put before PATH: the ``ssh`` that reaches these hosts."""
        return self.folder / "tools"

    def space(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def cut(self, name: str) -> None:
        """The cable, and with it whoever is logged in."""
        ip("-n", self.space(name), "link", "set", "net0", "down")
        (self.folder / f"lost-{name}").touch()

    def mend(self, name: str) -> None:
        ip("-n", self.space(name), "link", "set", "net0", "up")
        (self.folder / f"lost-{name}").unlink()

    def list_processes(self, name: str) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.space(name)).split()]

    def wait_for_end(self, name: str, seconds: float, but: str | None = None) -> list[str]:
        """What still runs there then. ``but``: not waited for is a command with that word."""
        end = time.monotonic() + seconds
        while (lines := self.list_commands(name, but)) and time.monotonic() < end:
            time.sleep(0.5)
        return lines

    def list_commands(self, name: str, but: str | None = None) -> list[str]:
        lines = []
        for pid in self.list_processes(name):
            with suppress(OSError):  # it ends now
                lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return [line for line in lines if but is None or but not in line]


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def make_hosts(folder: Path) -> Iterator[Hosts]:
    hosts = Hosts(folder, f"perfgen-{os.getpid()}-")
    hosts.tools.mkdir(parents=True)
    try:
        for number, name in enumerate(NAMES, 1):
            space = hosts.space(name)
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            for bridge, address in (("docker0", "172.17.0.1/16"), ("br-4f2c", "172.18.0.1/16")):
                ip("-n", space, "link", "add", bridge, "type", "bridge")
                ip("-n", space, "address", "add", address, "dev", bridge)
                ip("-n", space, "link", "set", bridge, "up")
            others = "".join(f"{NET}.{n} {other}\n" for n, other in enumerate(NAMES, 1) if n != number)
            (folder / f"hosts-{name}").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")
        first, second = map(hosts.space, NAMES)
        ip("link", "add", "net0", "netns", first, "type", "veth", "peer", "name", "net0", "netns", second)
        for number, space in enumerate((first, second), 1):
            ip("-n", space, "address", "add", f"{NET}.{number}/24", "dev", "net0")
            ip("-n", space, "link", "set", "net0", "up")
        write_program(
            hosts.tools / "on",  # on HOST COMMAND…
            f'#!/bin/sh\nhost=$1 && shift\nexec ip netns exec "{hosts.prefix}$host" '
            f'unshare --uts --mount sh -c \'{ENTER}\' "$host" "{folder}/hosts-$host" "$@"\n',
        )
        enter = str(hosts.tools / "on")
        write_program(hosts.tools / "ssh", SSH.format(python=sys.executable, lost=f"{folder}/lost-", enter=enter))
        yield hosts
    finally:
        for name in NAMES:
            for pid in hosts.list_processes(name) if hosts.space(name) in ip("netns", "list") else ():
                os.kill(pid, 9)
            subprocess.run(["ip", "netns", "del", hosts.space(name)], check=False, capture_output=True)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
