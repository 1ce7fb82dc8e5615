"""What has to go where a project was planned for, and what to do there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.emit.plan_document import ABSENT, ParallelRecord, PlanDocument
from generator.emit.sources import PlacedSource

KEPT_HERE = ("/.venv", "/runs", "/.perfgen/backup-*", "__pycache__")
"""of a project, as patterns of rsync: made anew there, or grown here. A model may be a folder called runs: /runs is the project's"""
UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingList:
    """``rows``: what, its place in the project, where it is now, files, bytes. ``commands`` copy it, ``there`` starts it there."""

    rows: tuple[tuple[str, str, str, int, int], ...]
    commands: tuple[str, ...]
    there: tuple[str, ...]


def pack_project(
    document: PlanDocument, placed: tuple[PlacedSource, ...], target: Path, files: Sequence[str]
) -> PackingList:
    """``files``: those that were written to ``target``, relative to it."""
    size = sum((target / file).stat().st_size for file in files)
    rows = [("project", f"{target.name}/", str(target), len(files), size)]
    rows += [(s.local.key, s.path, s.local.path, s.local.files, s.local.bytes) for s in placed]
    excluded = " ".join(shlex.quote(f"--exclude={name}") for name in list_kept_here(document))
    commands = [f"rsync -aL {excluded} {shlex.quote(f'{target}/')} USER@HOST:{shlex.quote(f'{target.name}/')}"]
    for source in placed:
        if not source.links and source.path.startswith("../"):
            commands.append(
                f"rsync -aL {shlex.quote(source.local.real)} USER@HOST:   # then set {source.local.key} in config.yaml"
            )
    return PackingList(rows=tuple(rows), commands=tuple(commands), there=tuple(list_next_steps(document, target.name)))


def list_kept_here(document: PlanDocument) -> tuple[str, ...]:
    """With the environment of a converter, whose copy `make setup` would take for one that is ready."""
    converts = document.server is not ABSENT and document.server.conversion
    return (*KEPT_HERE, *(("/.venv-convert",) if converts else ()))


def list_next_steps(document: PlanDocument, folder: str) -> list[str]:
    """Commands for the machine that the plan is for, each of a line."""
    enter, verb, parallel = f"cd {shlex.quote(folder)}", document.project.mode, document.parallel
    if document.server is not ABSENT and document.layout.nodes > 1:
        return [f"{enter} && make setup && sbatch serve.sbatch", *list_server_starts(enter, document.layout.nodes)]
    if parallel is None or parallel.nodes == 1:
        contained = [f"{enter} && make image && sh container.sh   # or in a container"]
        return [
            f"{enter} && make setup && make smoke && make {verb}",
            *(contained if document.project.contained else []),
        ]
    return [f"{enter} && make setup && sbatch train.sbatch", *list_starts(enter, parallel)]


def list_starts(enter: str, parallel: ParallelRecord) -> list[str]:
    """Without Slurm."""
    every = f"on each of the {parallel.nodes} nodes, at the same time"
    return [
        f"{enter} && make train MASTER_ADDR=NODE   # or, without Slurm: {every}",
        f"{enter} && make image && MASTER_ADDR=NODE sh container.sh   # or in containers: {every}",
    ]


def list_server_starts(enter: str, nodes: int) -> list[str]:
    """Without Slurm."""
    others = f"on the first of the {nodes} nodes, which answers, and with its own NODE_RANK on each of the others"
    return [
        f"{enter} && MASTER_ADDR=NODE NODE_RANK=0 make serve   # or, without Slurm: {others}",
        f"{enter} && make image && MASTER_ADDR=NODE NODE_RANK=0 sh container.sh   # or in containers: so, too",
    ]


def describe_place(document: PlanDocument) -> str:
    """Where the project's folder must be for these commands."""
    served = document.server is not ABSENT and document.layout.nodes > 1
    several = served or (document.parallel is not None and document.parallel.nodes > 1)
    return "there, on a disk that all nodes see" if several else "there"


def format_packing(packing: PackingList, document: PlanDocument) -> list[str]:
    lines = [f"this plan is for {document.project.machine}. Copy to there:"]
    for what, place, origin, files, size in packing.rows:
        where = f"{place}  ({origin})" if what != "project" else origin
        lines.append(f"  {what:<10} {files:>5} file{'s' if files != 1 else ' '}  {format_bytes(size):>10}  {where}")
    lines += [f"  {key:<10} from the hub, at the first run: {name}" for key, name in list_hub_names(document)]
    if document.project.hub:
        lines.append("             where it is gated, with your token: HF_TOKEN in .env, as in .env.example")
    lines += [f"  {command}" for command in packing.commands]
    if any(what != "project" for what, *_ in packing.rows):
        lines.append("  (-L takes along what the project's links lead to; scp -r does so too)")
    return [*lines, f"next, {describe_place(document)}:", *(f"  {command}" for command in packing.there)]


def list_hub_names(document: PlanDocument) -> list[tuple[str, str]]:
    """What config.yaml names and the hub has."""
    config, local = document.config, {source.key for source in document.project.sources}
    names = [("model", config.model)] if document.project.hub else []
    names += [("tokenizer", config.tokenizer)] if isinstance(config.tokenizer, str) and "tokenizer" not in local else []
    names += [
        (key, value)
        for key, value in [("draft_model", config.draft_model)]
        if isinstance(value, str) and key not in local
    ]
    names += [("data", config.data)] if document.project.data_format == "hub" and isinstance(config.data, str) else []
    return names


def format_bytes(size: int) -> str:
    """Three digits and a unit of a thousand, as rsync and disks count."""
    number, unit = float(size), 0
    while number >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g} {UNITS[unit]}"
