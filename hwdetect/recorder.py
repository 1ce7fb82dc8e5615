"""Writing a recording: what the probes read, as files, and the rest as ``machine.json``; private words replaced."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

from hwdetect.jsonio import as_mapping
from hwdetect.machine import COMMAND_FILES, Live, Output

SECONDS = 4.5
# Lines of a few files that name a board, a person or a network: dropped whole.
PRIVATE_LINES = re.compile(
    r"^\s*(serial|hardware serial|chassis serial|machine-id|unique_id|kern\.(hostname|uuid|bootsessionuuid|\w*domainname))\b",
    re.IGNORECASE,
)
MAC_IN_NAME = re.compile(r"\benx[0-9a-f]{12}\b", re.IGNORECASE)  # systemd names interfaces after their address
MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}(?:[0-9a-f]{2}:?)+\b", re.IGNORECASE)
IPV4 = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])")
IPV6 = re.compile(
    r"(?<![0-9a-f:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|[0-9a-f]{3,4}(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?)"
    r"(?![0-9a-f:])",
    re.IGNORECASE,
)
# The only lines of the mount table that a replay needs: others carry paths, shares and servers.
MOUNT_KINDS = ("cgroup", "cgroup2", "cpuset")
SERIAL_TAGS = re.compile(r"(<(\w*serial\w*)>)[^<]*(</\2>)", re.IGNORECASE)
SERIAL_KEYS = re.compile(r'("[^"]*serial[^"]*"\s*:\s*)"[^"]*"', re.IGNORECASE)


class Tee(Live):
    """A live machine that remembers every text it gave."""

    def __init__(self, deadline_s: float):
        super().__init__(deadline_s)
        self.texts: dict[str, str] = {}

    def read(self, path: str) -> str | None:
        text = super().read(path)
        if text is not None:
            self.texts[path] = text
        return text

    def run(self, argv: tuple[str, ...], seconds: float) -> Output:
        output = super().run(argv, seconds)
        if output.text is not None and argv in COMMAND_FILES and output.problem is None:
            self.texts[COMMAND_FILES[argv]] = output.text
        return output


def record(dest: Path, *, private: bool) -> None:
    """``hwdetect.capture``."""
    from hwdetect.assemble import read

    dest = Path(dest)
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise FileExistsError(f"{dest} exists and is not an empty folder: a recording starts in a new one")
    machine = Tee(SECONDS)
    hardware = read(machine, SECONDS)
    redactor = Redactor({}) if private else Redactor(private_words())
    for path, text in sorted(machine.texts.items()):
        kept = text if private else _kept(path, text)
        if kept is not None:
            _write(dest / redactor.words(path), kept if private else _hidden(path, kept, redactor))
    _write(dest / "proc/sys/kernel/arch", f"{machine.architecture()}\n")
    _write_affinity(dest, machine)
    # Findings are made anew from the values; everything else that a file cannot say stands here.
    text = json.dumps(as_mapping(replace(hardware, findings=())), indent=1, ensure_ascii=False)
    _write(dest / "machine.json", (text if private else redactor.addresses(redactor.words(text))) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="replace")


def _write_affinity(dest: Path, machine: Live) -> None:
    from hwdetect.probes.lists import as_list

    affinity = machine.affinity()
    if affinity is not None:
        _write(dest / "proc/self/status", f"Cpus_allowed_list:\t{as_list(affinity)}\n")


def _hidden(path: str, text: str, redactor: Redactor) -> str:
    """Names of host and user can stand in group paths and in what tools print; elsewhere such a word means itself
    (a host may be called "intel")."""
    named = path.startswith("proc/self/") or "/" not in path
    return redactor.addresses(redactor.words(text) if named else text)


def _kept(path: str, text: str) -> str | None:
    """What of a file goes into the recording; ``None`` for one that must not."""
    name = path.rsplit("/", 1)[-1]
    if name in ("mountinfo", "mounts"):
        return "".join(f"{line}\n" for line in text.splitlines() if _is_group_mount(line))
    if name in ("environ", "address", "serial_number", "unique_id", "cmdline", "hostname", "machine-id"):
        return None
    text = SERIAL_KEYS.sub(r'\1"hidden"', SERIAL_TAGS.sub(r"\1hidden\3", text))
    return "".join(line for line in text.splitlines(keepends=True) if not PRIVATE_LINES.match(line))


def _is_group_mount(line: str) -> bool:
    _, separator, after = line.partition(" - ")
    kind = after.split(" ")[0] if separator else [*line.split(), "", "", ""][2]
    return kind in MOUNT_KINDS


def private_words() -> dict[str, str]:
    """Words that name this host and this user, and what stands for them."""
    import getpass
    import socket

    words: dict[str, str] = {}
    host = socket.gethostname()
    for name in (host, host.split(".")[0]):
        words[name] = "host"
    home = str(Path("~").expanduser())
    if home not in ("~", "/", "/root"):
        words[home] = "/home/user"
    with contextlib.suppress(KeyError, OSError, ImportError):  # a container's user without a name has none to hide
        words[getpass.getuser()] = "user"
    # Words that every machine has would garble paths: "root" is no person, "localhost" no host.
    return {
        word: mark
        for word, mark in words.items()
        if len(word) > 2 and word not in ("root", "localhost", "user", "host")
    }


class Redactor:
    """Replaces private words and network addresses, the same everywhere, so that paths and texts still fit together."""

    def __init__(self, words: dict[str, str]):
        longest_first = sorted(words, key=len, reverse=True)
        pattern = "|".join(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])" for word in longest_first)
        self._words, self._pattern = dict(words), re.compile(pattern) if pattern else None

    def words(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda match: self._words[match.group(0)], text)

    def addresses(self, text: str) -> str:
        text = MAC_IN_NAME.sub("enx000000000000", MAC.sub("00:00:00:00:00:00", text))
        return IPV4.sub("0.0.0.0", IPV6.sub("::", text))
