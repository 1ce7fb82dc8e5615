"""What a recording must not hold: serial numbers, ids of boards, names of host and people, network addresses."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from hwdetect.types import Hardware

# Lines of a few files that name a board, a person or a network: dropped whole.
PRIVATE_LINES = re.compile(
    r"^\s*(serial|hardware serial|chassis serial|machine-id|kern\.(hostname|uuid|bootsessionuuid|\w*domainname))\b",
    re.IGNORECASE,
)
PRIVATE_FILES = ("environ", "address", "serial_number", "cmdline", "hostname", "machine-id", "product_uuid")
# The only lines of the mount table that a replay needs: others carry paths, shares and servers.
MOUNT_KINDS = ("cgroup", "cgroup2", "cpuset")
HIDDEN_TAGS = re.compile(r"(<(\w*(?:serial|guid|cluster_uuid|process_name)\w*)>)[^<]*(</\2>)", re.IGNORECASE)
HIDDEN_KEYS = re.compile(r'("[^"]*(?:serial|guid)[^"]*"\s*:\s*)(?:"[^"]*"|-?[0-9][0-9.eE+]*)', re.IGNORECASE)
HIDDEN_WORDS = re.compile(
    r"^(\s*(?:[\w ]*\b(?:serial number|guid)\b[\w ]*|cluster ?uuid)\s*:\s*).*$", re.IGNORECASE | re.MULTILINE
)
# Programs that were running: nvidia-smi -q lists them deeper than anything else that is called "Name".
PROCESS_NAMES = re.compile(r"^(\s{12,}Name\s*:\s*).*$", re.MULTILINE)

MAC_IN_NAME = re.compile(r"\benx[0-9a-f]{12}\b", re.IGNORECASE)  # systemd names interfaces after their address
MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}(?:[0-9a-f]{2}:?)+\b", re.IGNORECASE)
IPV4 = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])")
IPV6 = re.compile(
    r"(?<![0-9a-f:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|[0-9a-f]{3,4}(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?)"
    r"(?![0-9a-f:])",
    re.IGNORECASE,
)
UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
AMD_ID = re.compile(r"GPU-([0-9a-f]{16})")


def strip_private(path: str, text: str) -> str | None:
    """What of a file goes into the recording; ``None`` for one that must not."""
    name = path.rsplit("/", 1)[-1]
    if name in ("mountinfo", "mounts"):
        return "".join(f"{line}\n" for line in text.splitlines() if _is_group_mount(line))
    if name in PRIVATE_FILES:
        return None
    text = HIDDEN_KEYS.sub(r'\1"hidden"', HIDDEN_TAGS.sub(r"\1hidden\3", text))
    text = "".join(line for line in text.splitlines(keepends=True) if not PRIVATE_LINES.match(line))
    return PROCESS_NAMES.sub(r"\1hidden", HIDDEN_WORDS.sub(r"\1hidden", text))


def _is_group_mount(line: str) -> bool:
    _, separator, after = line.partition(" - ")
    kind = after.split(" ")[0] if separator else [*line.split(), "", "", ""][2]
    return kind in MOUNT_KINDS


def list_private_words() -> dict[str, str]:
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


def list_board_ids(hardware: Hardware) -> tuple[str, ...]:
    """Every id of a board or a slice of one, once, in order. Old ids of slices hold their board's and need no other."""
    own = (*(b.uuid for b in hardware.boards), *(a.uuid for a in hardware.accelerators))
    return tuple(dict.fromkeys(uuid for uuid in own if uuid and "/" not in uuid and re.search("[1-9a-fA-F]", uuid[8:])))


def build_stand_in(uuid: str, number: int) -> str:
    """``GPU-00000000-0000-0000-0000-000000000001``: an id of the same shape that names no board."""
    prefix = re.match(r"(?:MIG-)?(?:GPU-)?", uuid)
    start = prefix.end() if prefix else 0
    zeros = re.sub(r"[0-9A-Za-z]", "0", uuid[start:])
    digits = str(number)
    return uuid[:start] + zeros[: max(0, len(zeros) - len(digits))] + digits


class Redactor:
    """Replaces private words, ids and addresses, the same everywhere, so that paths and texts still fit together."""

    def __init__(self, words: dict[str, str], ids: Iterable[str] = ()):
        longest_first = sorted(words, key=len, reverse=True)
        pattern = "|".join(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])" for word in longest_first)
        self._words, self._pattern = dict(words), re.compile(pattern) if pattern else None
        self._ids: dict[str, str] = {}
        for uuid in ids:
            self._add_id(uuid)

    def _add_id(self, uuid: str) -> None:
        replacement = build_stand_in(uuid, len(self._ids) + 1)
        self._ids[uuid] = replacement
        if amd := AMD_ID.fullmatch(uuid):  # the kernel writes the number in decimal, rocm-smi as 0x…
            was, now = int(amd.group(1), 16), int(replacement[4:])
            self._ids |= {str(was): str(now), f"0x{was:x}": f"0x{now:x}", f"0x{was:016x}": f"0x{now:x}"}

    def words(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda match: self._words[match.group(0)], text)

    def ids(self, text: str) -> str:
        """Ids of boards by their stand-ins, beginnings of them (of 6 characters at least) too, and any other UUID."""
        for uuid, replacement in self._ids.items():
            text = text.replace(uuid, replacement)
        text = re.sub(r"\b(?:MIG-)?GPU-[0-9a-f]{2}[0-9a-f-]*", self._complete_id, text)
        return UUID.sub(lambda match: match.group(0) if match.group(0).startswith("00000000-0000-") else NO_UUID, text)

    def _complete_id(self, match: re.Match[str]) -> str:
        beginning = match.group(0)
        if beginning in self._ids.values():
            return beginning
        return next((replacement for uuid, replacement in self._ids.items() if uuid.startswith(beginning)), beginning)

    def addresses(self, text: str) -> str:
        text = MAC_IN_NAME.sub("enx000000000000", MAC.sub("00:00:00:00:00:00", text))
        return IPV4.sub("0.0.0.0", IPV6.sub("::", text))


NO_UUID = "00000000-0000-0000-0000-000000000000"
