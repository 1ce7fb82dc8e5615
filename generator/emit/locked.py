"""What `make lock` pinned in a project, through an update: no edit of its owner's, and kept as long as it is of what is planned.

The record of what was emitted is without it: a plan asks no index and no registry.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generator.emit.emitted import Tree
from generator.emit.outcomes import decide_file, read_standing
from generator.emit.plan_json import check_parts

DOCKERFILE, LOCK, PLAN, PYPROJECT = "Dockerfile", "requirements.lock", "plan.json", "pyproject.toml"
IMAGE = re.compile(rb"^FROM (\S+)", re.MULTILINE)
HEADER = re.compile(r"^# of pyproject\.toml: (\w+)$", re.MULTILINE)
ENTRY = re.compile(r"^(\w[^\n ]*)==([^\n ]+) ; ([^\n]*) \\\n    --hash=[^\n]*$", re.MULTILINE)
EXTRA = "test"
"""of pyproject.toml; what `make lock` pins besides the dependencies"""


@dataclass(frozen=True, slots=True)
class Lock:
    """``image``: the base image by its digest, as the Dockerfile has it. ``text``: requirements.lock. ``record``: what plan.json
    says of both. ``None``: there is none."""

    image: str | None
    text: str | None
    record: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Carried:
    """``base`` and ``new`` as `make lock` left, and would leave, them; ``record`` is what plan.json says from now on."""

    base: Tree
    new: Tree
    record: Mapping[str, Any] | None
    notes: tuple[str, ...]


def read_lock(folder: Path, plan: Mapping[str, Any]) -> Lock:
    """``plan`` is the project's plan.json."""
    try:
        record = check_parts(plan, ["lock"])["lock"] if "lock" in plan else None
    except ValueError:
        record = None
    dockerfile, lock = read_standing(folder, DOCKERFILE).file, read_standing(folder, LOCK).file
    image = read_image(dockerfile.content) if dockerfile else ""
    text = lock.content.decode("utf-8", "replace").replace("\r\n", "\n") if lock else None
    return Lock(image if "@" in image else None, text, record)


def carry_lock(folder: Path, plan: Mapping[str, Any], base: Tree, new: Tree, rejects: bool = False) -> Carried:
    """The versions of a merge with what is locked in the project; what of it is not of ``new`` is dropped, and said."""
    lock, record, notes = read_lock(folder, plan), None, []
    planned = read_image(new[DOCKERFILE].content) if DOCKERFILE in new else ""
    pinned = lock.image if lock.image and get_tag(lock.image) == planned else None
    if lock.image and not pinned and DOCKERFILE in base and get_tag(lock.image) == read_image(base[DOCKERFILE].content):
        was = get_tag(lock.image)
        notes.append(f"the base image is {planned} now, and the digest was that of {was}: `make lock` pins the new one")
    if lock.text is None and lock.record:
        notes.append(f"there is no {LOCK}: the packages are not locked any more, `make lock` locks them")
    elif lock.text is not None and is_of(lock.text, hash_planned(folder, base, new, rejects)):
        record = describe_lock(lock.text, pinned)
    elif lock.text is not None:
        advice = "`make setup` and the Dockerfile refuse it until `make lock`, or until it is removed"
        notes.append(f"{LOCK} is of other requirements than {PYPROJECT} has then: {advice}")
    return Carried(
        base=write_record(pin_image(base, lock.image), lock.record),
        new=write_record(pin_image(new, pinned), record),
        record=record,
        notes=tuple(notes),
    )


def is_of(lock: str, requirements: str | None) -> bool:
    """Whether a requirements.lock is of the requirements of this hash."""
    header = HEADER.search(lock)
    return header is not None and header[1] == requirements


def describe_lock(lock: str, image: str | None) -> dict[str, Any]:
    """What the project's lock.py writes into plan.json of its requirements.lock."""
    packages: dict[str, dict[str, str]] = {}
    for name, version, marker in ENTRY.findall(lock):
        packages.setdefault(marker, {})[name] = version
    sha256 = hashlib.sha256(lock.encode()).hexdigest()
    return {"image": image, "requirements_sha256": sha256, "packages": packages}


def read_image(dockerfile: bytes) -> str:
    match = IMAGE.search(dockerfile)
    return match[1].decode("utf-8", "replace") if match else ""


def get_tag(image: str) -> str:
    """The image's name without its digest."""
    return image.partition("@")[0]


def hash_planned(folder: Path, base: Tree, new: Tree, rejects: bool) -> str | None:
    """The hash of the requirements that the project will have; ``None`` where pyproject.toml cannot be read, as with markers in it."""
    mine = read_standing(folder, PYPROJECT)
    outcome = decide_file(PYPROJECT, mine, base.get(PYPROJECT), new.get(PYPROJECT), rejects)
    content = outcome.content if outcome.content is not None else mine.file.content if mine.file else b""
    return hash_requirements(content)


def hash_requirements(pyproject: bytes) -> str | None:
    """As the project's lock.py writes it into requirements.lock."""
    try:
        content = tomllib.loads(pyproject.decode("utf-8"))
        project, uv = content["project"], content["tool"].get("uv")
        index = uv["index"][0]["url"] if uv else None  # without torch there is none
        wanted = [sorted(project["dependencies"] + project["optional-dependencies"][EXTRA]), index]
        return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def pin_image(tree: Tree, image: str | None) -> Tree:
    """With the digest in the Dockerfile, where that is of the same image."""
    if image is None or DOCKERFILE not in tree or read_image(tree[DOCKERFILE].content) != get_tag(image):
        return tree
    content = IMAGE.sub(lambda _: b"FROM " + image.encode(), tree[DOCKERFILE].content, count=1)
    return {**tree, DOCKERFILE: replace(tree[DOCKERFILE], content=content)}


def write_record(tree: Tree, record: Mapping[str, Any] | None) -> Tree:
    """With what was locked in plan.json, as the project's lock.py writes it."""
    try:
        plan = json.loads(tree[PLAN].content) if PLAN in tree else None
    except ValueError:  # a record may come with a stranger's project
        plan = None
    if not isinstance(plan, dict) or plan.get("lock") == record:
        return tree
    plan = {key: value for key, value in plan.items() if key != "lock"} | ({"lock": record} if record else {})
    content = json.dumps(plan, indent=2, ensure_ascii=False) + "\n"
    return {**tree, PLAN: replace(tree[PLAN], content=content.encode())}
