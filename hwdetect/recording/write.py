"""Writing a recording: what the probes read, as files, and the rest as ``machine.json``; private words replaced."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hwdetect.jsonio import convert_to_mapping
from hwdetect.machine.commands import COMMAND_FILES
from hwdetect.machine.live import Live
from hwdetect.machine.protocol import Output
from hwdetect.probes.parsing import parse_pairs
from hwdetect.recording.redact import Redactor, list_board_ids, list_private_words, strip_private
from hwdetect.types import Hardware

SECONDS = 4.5
# Below these the shape of the tree is a reading as well: which folders there are, and where links lead.
TREES = ("sys/", "proc/driver/", "proc/device-tree/", "dev/")
ACCELERATOR_NODE = re.compile(r"(accel|neuron|davinci)\d+")
MARKS = (".dockerenv", "run/.containerenv", ".singularity.d")


@dataclass(frozen=True, slots=True)
class Readings:
    """What a machine had been asked up to one moment."""

    texts: dict[str, str]
    folders: set[str]
    links: dict[str, str]


class Tee(Live):
    """A live machine that remembers every text it gave, every folder it listed and every link it followed."""

    def __init__(self, deadline_s: float):
        super().__init__(deadline_s)
        self.texts: dict[str, str] = {}
        self.folders: set[str] = set()
        self.links: dict[str, str] = {}

    def copy_readings(self) -> Readings:
        """A probe that was given up at its deadline may still read on: what it adds later is not in the copy."""
        return Readings(dict(self.texts), set(self.folders), dict(self.links))

    def read(self, path: str) -> str | None:
        text = super().read(path)
        if text is not None:
            self.texts[path] = text
        return text

    def list_folder(self, path: str) -> tuple[str, ...]:
        names = super().list_folder(path)
        if path == "dev":  # what else stands there (volumes, terminals) is nobody's business
            self.folders |= {f"dev/{name}" for name in names if ACCELERATOR_NODE.fullmatch(name)}
        elif path.startswith(TREES) or f"{path}/" in TREES:
            self.folders |= {f"{path}/{name}" for name in names}
        return names

    def exists(self, path: str) -> bool:
        there = super().exists(path)
        if there and path.startswith((*TREES, *MARKS)):
            self.folders.add(path)
        return there

    def resolve_link(self, path: str) -> str | None:
        place = super().resolve_link(path)
        if place is not None and path.startswith(TREES):
            self.links[path] = place
        return place

    def run(self, argv: tuple[str, ...], seconds: float) -> Output:
        output = super().run(argv, seconds)
        if output.text is not None and argv in COMMAND_FILES and output.problem is None:
            self.texts[COMMAND_FILES[argv]] = output.text
        return output


def write_recording(dest: Path, *, private: bool, progress: Callable[[str], None] | None) -> Hardware:
    """``hwdetect.capture``. ``progress`` is told of measurements; ``None``: nothing is measured."""
    dest = Path(dest)
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise FileExistsError(f"{dest} exists and is not an empty folder: a recording starts in a new one")
    empty = dest.is_dir()
    dest.mkdir(parents=True, exist_ok=True)  # where that cannot be, nothing needs to be read
    try:
        return _record(dest, private=private, progress=progress)
    except BaseException:  # a full disk, Ctrl-C: half a recording would be read as a machine
        shutil.rmtree(dest, ignore_errors=True)
        if empty:
            dest.mkdir(exist_ok=True)
        raise


def _record(dest: Path, *, private: bool, progress: Callable[[str], None] | None) -> Hardware:
    from hwdetect import findings
    from hwdetect.assemble import read_machine

    # A little less than ``detect`` allows itself: writing the files comes on top.
    machine = Tee(SECONDS)
    hardware = read_machine(machine, SECONDS)
    if progress is not None:
        from hwdetect.measure.take import measure_hardware

        hardware = measure_hardware(hardware, progress)
    readings = machine.copy_readings()
    redactor = Redactor({}) if private else Redactor(list_private_words(), list_board_ids(hardware))
    _write_tree(dest, readings, redactor)
    for path, text in sorted(readings.texts.items()):
        own = text if private else strip_private(path, text)
        if own is not None:
            _write(
                dest / redactor.addresses(redactor.words(path)), own if private else _hide_private(path, own, redactor)
            )
    if architecture := machine.get_architecture():
        _write(dest / "proc/sys/kernel/arch", f"{architecture}\n")
    _write_status(dest, machine)
    # Findings are made anew from the values; everything else that a file cannot say stands here.
    text = json.dumps(convert_to_mapping(replace(hardware, findings=())), indent=1, ensure_ascii=False, allow_nan=False)
    _write(dest / "machine.json", (text if private else redactor.ids(redactor.addresses(redactor.words(text)))) + "\n")
    return replace(hardware, findings=findings.find_problems(hardware))


def _write_tree(dest: Path, readings: Readings, redactor: Redactor) -> None:
    """Links first, shortest first: what stands below one is then written where it leads."""

    def place(path: str) -> Path:
        return dest / redactor.addresses(redactor.words(path))

    for path, target in sorted(readings.links.items(), key=lambda item: (item[0].count("/"), item[0])):
        link, leads_to = place(path), place(target)
        leads_to.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists() and not link.is_symlink():
            with contextlib.suppress(OSError):  # a file system without links: machine.json says what they told
                link.symlink_to(os.path.relpath(leads_to.resolve(), link.parent.resolve()))
    for path in sorted(readings.folders - set(readings.texts)):
        if not place(path).exists() and not any(text.startswith(f"{path}/") for text in readings.texts):
            # Whether it was a file or a folder, a replay asks only if it is there.
            place(path).mkdir(parents=True, exist_ok=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="replace")


def _write_status(dest: Path, machine: Live) -> None:
    """Of proc/self/status what probes read: the CPUs by the system's own call, and what the process may do."""
    from hwdetect.machine.cpu_lists import format_cpu_list

    affinity = machine.get_affinity()
    lines = [f"Cpus_allowed_list:\t{format_cpu_list(affinity)}\n"] if affinity is not None else []
    held = parse_pairs(machine.read("proc/self/status")).get("CapEff")
    lines += [f"CapEff:\t{held}\n"] if held else []
    if lines:
        _write(dest / "proc/self/status", "".join(lines))


def _hide_private(path: str, text: str, redactor: Redactor) -> str:
    """Names of host and user can stand in group paths and in what tools print; elsewhere such a word means itself
    (a host may be called "intel")."""
    named = path.startswith("proc/self/") or "/" not in path
    return redactor.ids(redactor.addresses(redactor.words(text) if named else text))
