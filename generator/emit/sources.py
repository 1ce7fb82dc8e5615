"""Where a project finds its model, tokenizer and data: at paths of its own folder, so that it can be moved.

What lies elsewhere gets a place there, ``data/NAME`` for the data, and a link from it to where it is now. No path of this machine
stands in a document.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from generator.case.sources import Work
from generator.decide.notes import Note
from generator.decide.plan import Planned
from generator.emit.plan_document import LocalSourceRecord
from generator.inputs.local_files import LocalSource

SAMPLE = {"model": "./sample", "data": "./sample/text.txt"}
"""What the template brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSource:
    """``path`` is what config.yaml says. ``links``: place in the project, relative to it, and where that leads; of what lies in the
    project, or around it, there are none."""

    local: LocalSource
    path: str
    links: tuple[tuple[str, str], ...] = ()


def place_sources(work: Work, dest: Path | None) -> tuple[PlacedSource, ...]:
    """What is on this machine, each with its place. ``dest``: the project's folder, ``None`` where that is not known yet."""
    return tuple(place_source(local, dest) for local in work.local)


def place_source(local: LocalSource, dest: Path | None) -> PlacedSource:
    path, real = Path(local.path), Path(local.real)
    if dest is not None:
        for origin in (path, real):
            if origin.is_relative_to(dest) and origin != dest:
                return PlacedSource(local=local, path=f"./{origin.relative_to(dest).as_posix()}")
        if dest.is_relative_to(real):  # a link to it would lead around in a circle
            return PlacedSource(local=local, path=Path(os.path.relpath(real, dest)).as_posix())
    folder = f"{local.key}/{path.parent.name}" if is_config(path) else local.key
    links = tuple((f"{folder}/{name_part(Path(part), path)}", part) for part in local.parts)
    return PlacedSource(local=local, path=f"./{folder}/{path.name}", links=links)


def name_part(part: Path, path: Path) -> str:
    """Of a folder of which not all is taken, and of a pattern, each part has a link."""
    return f"{path.name}/{part.name}" if part.parent == path else part.name


def is_config(path: Path) -> bool:
    """A model's sizes alone are called as the folder around them is."""
    return path.name == "config.json" and path.parent.name != ""


def localize(planned: Planned, placed: tuple[PlacedSource, ...]) -> Planned:
    """The same, with places in the project for the paths of this machine, wherever they are written."""
    work, place = planned.work, {source.local.key: source.path for source in placed}
    write = make_writer(work, placed)
    if work.request.model is None:
        place = {"model": SAMPLE["model"]} | ({} if work.request.data else {"data": SAMPLE["data"]}) | place
    data, held = work.data, work.held_out
    if data is not None:
        data = replace(data, path=place.get("data", data.path), notes=tuple(map(write, data.notes)))
    if held is not None and held.file is not None:
        held = replace(held, file=replace(held.file, path=place["eval_data"]))
    adapter = work.source.adapter
    adapter = adapter and replace(adapter, path=place.get("adapter", adapter.path))
    source = replace(
        work.source,
        path=place.get("model", work.source.path),
        adapter=adapter,
        notes=tuple(map(write, work.source.notes)),
    )
    return replace(
        planned,
        notes=tuple(Note(kind=note.kind, text=write(note.text)) for note in planned.notes),
        work=replace(
            work,
            request=replace(work.request, tokenizer=place.get("tokenizer", work.request.tokenizer)),
            source=source,
            draft=work.draft and replace(work.draft, path=place.get("draft_model", work.draft.path)),
            data=data,
            held_out=held,
            origins={name: replace(origin, why=write(origin.why)) for name, origin in work.origins.items()},
        ),
    )


def make_writer(work: Work, placed: tuple[PlacedSource, ...]) -> Callable[[str], str]:
    """A function that writes the project's paths for those of this machine in a text. Words without a / are left as they are."""
    names = {source.local.named: Path(source.local.named).name for source in placed}
    names |= {name: Path(name).name for name in (work.request.config, work.request.hardware) if name}
    names |= {path: source.path for source in placed for path in (source.local.real, source.local.path)}
    texts = sorted((name for name in names if "/" in name), key=len, reverse=True)
    if not texts:
        return lambda text: text
    pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, texts))})(?![\w-])")
    return lambda text: pattern.sub(lambda match: names[match[0]], text)


def describe_sources(placed: tuple[PlacedSource, ...]) -> tuple[LocalSourceRecord, ...]:
    return tuple(
        LocalSourceRecord(key=s.local.key, path=s.path, files=s.local.files, bytes=s.local.bytes) for s in placed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """A link that is missing, leads elsewhere, or (``after`` None) to what is no part of the source any more, of a pattern that it
    matches. ``before``: where it leads; ``None`` where no link is. ``obstacle``: why it stays as it is, in words."""

    name: str
    before: str | None
    after: str | None
    obstacle: str = ""

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.name} leads to {self.before}, which is no part of it any more: the link goes"
        if self.obstacle:
            return f"{self.name} {self.obstacle} and stays as it is; the plan is for {self.after}: copy that there"
        return f"{self.name} {f'leads to {self.before}, and will lead' if self.before else 'is a link, new,'} to {self.after}"


def compare_links(placed: tuple[PlacedSource, ...], project: Path) -> tuple[LinkChange, ...]:
    """What is to be done for every source to be found in its place. A link of the user's that leads there by another way stays."""
    changes = []
    for source in placed:
        for name, origin in source.links:
            place = project / name
            before = str(place.readlink()) if place.is_symlink() else None
            if not is_inside(place, project) and os.path.realpath(place) == os.path.realpath(origin):
                continue  # the folder is a link, of all that lies there
            if before is None or not leads_to(place, origin):
                changes.append(
                    LinkChange(name=name, before=before, after=origin, obstacle=find_obstacle(place, project))
                )
        changes += list_stale_links(source, project)
    return tuple(changes)


def is_inside(place: Path, project: Path) -> bool:
    """Whether its folder is the project's own: one that is a link may lead anywhere."""
    return Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(project))


def find_obstacle(place: Path, project: Path) -> str:
    """Why no link is made there; "" where one can be."""
    if not is_inside(place, project):
        return "lies behind a link"
    return "is no link" if os.path.lexists(place) and not place.is_symlink() else ""


def leads_to(link: Path, origin: str) -> bool:
    if os.path.realpath(link) != os.path.realpath(origin):
        return False
    led = link.readlink()
    return not led.is_absolute() or os.path.normpath(led) == os.path.normpath(origin)


def list_stale_links(source: PlacedSource, project: Path) -> list[LinkChange]:
    """Links that the project would read as parts of a source of several files, and that are none."""
    pattern = project / source.path
    if not source.links or "*" not in pattern.name:
        return []
    names = {project / name for name, _ in source.links}
    return [
        LinkChange(name=path.relative_to(project).as_posix(), before=str(path.readlink()), after=None)
        for path in sorted(pattern.parent.glob(pattern.name))
        if path.is_symlink() and path not in names and is_inside(path, project)
    ]


def link_sources(placed: tuple[PlacedSource, ...], project: Path) -> tuple[LinkChange, ...]:
    """Make the links, in the place of older ones. Those that cannot be are returned."""
    for change in compare_links(placed, project):
        set_link(project, change.name, change.after)
    return compare_links(placed, project)


def set_link(project: Path, name: str, leads_to: str | None) -> None:
    """At every moment the old link or the new one. What is no link stays, and where none can be made there is none."""
    place = project / name
    with suppress(OSError):
        if find_obstacle(place, project):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        if leads_to is None:
            place.unlink(missing_ok=True)
            return
        draft = place.with_name(f".{place.name}.new")
        draft.unlink(missing_ok=True)
        draft.symlink_to(leads_to)
        draft.replace(place)


def keep_sources(placed: tuple[PlacedSource, ...], backup: Path, project: Path) -> list[str]:
    """Bring what lay in the replaced project back to where config.yaml names it; the names, relative to the project."""
    kept = []
    for source in placed:
        for part in source.local.parts:
            name = next(
                (os.path.relpath(p, project) for p in (part, source.local.real) if Path(p).is_relative_to(project)), ""
            )
            if name and os.path.lexists(backup / name) and not os.path.lexists(project / name):
                (project / name).parent.mkdir(parents=True, exist_ok=True)
                (backup / name).rename(project / name)
                kept.append(name)
    return kept
