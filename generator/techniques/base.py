"""What a technique is. One file under ``techniques/<axis>/`` declares one; nothing else names it.

A technique says whether it can be used (``obstacle``), beside what it cannot (``clash``), how the script that runs
changes (``effects``, read by the cost model), what it writes (``edits``), and on what evidence it may be preferred.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.edits import Edits


@dataclass(frozen=True, slots=True)
class Published:
    """A claim and where it was made."""

    url: str
    claim: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of ``benchmarks/results``: the file and the name of the row."""

    file: str
    row: str


Evidence = Published | Measured


class Technique:
    """Base of every technique. The docstring of a subclass is its documentation.

    ``axis`` and ``name`` are the folder and the file; ``modes`` where it applies. ``baseline`` marks the plain member of
    the axis. ``quality`` is what it may do to convergence or outputs: 0 nothing, 1 to 3 rising risk, stated in
    ``quality_note``; above 0 it is taken only when the user allows it or nothing else fits. ``request_only`` names why it
    is never chosen unasked (it is another algorithm, or another result). ``compiles``: it needs a C++ compiler at run time.
    ``adds``: settings, files and libraries that it brings into the project: each must earn 1 % of a step.
    ``resort``: above 0, taken only where nothing of a lower one fits, whatever the cost model hopes for (the guides' rule for
    DeepSpeed, 1, and offloading, 2).
    ``accumulates``: False where every backward pass updates the weights, so that a micro-batch must be the whole batch.
    ``emitted``: False where it is planned and priced, but no project can be made of it yet.
    """

    axis: ClassVar[str]
    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = ("train",)
    baseline: ClassVar[bool] = False
    quality: ClassVar[int] = 0
    quality_note: ClassVar[str] = ""
    request_only: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    resort: ClassVar[int] = 0
    accumulates: ClassVar[bool] = True
    emitted: ClassVar[bool] = True
    adds: ClassVar[int] = 1
    evidence: ClassVar[tuple[Evidence, ...]] = ()

    def obstacle(self, case: Case) -> str | None:
        """Why it cannot be used in this case, or ``None``: predicate and explanation in one."""
        return None

    def clash(self, other: Technique, case: Case) -> str | None:
        """Why it cannot stand beside ``other``, or ``None``."""
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        """The fields of ``Execution`` that it sets."""
        return {}

    def layouts(self, case: Case) -> tuple[Layout, ...] | None:
        """The ways to divide the devices among which it lets the plan choose; ``None``: it does not say."""
        return None

    def once_seconds(self, case: Case) -> float:
        """Seconds it costs once, before the first step (compilation)."""
        return 0.0

    def edits(self, case: Case) -> Edits:
        return Edits()

    @property
    def id(self) -> str:
        return f"{self.axis}={self.name}"

    @property
    def title(self) -> str:
        return (self.__doc__ or self.name).strip().splitlines()[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class Axis:
    """One question a plan answers, and the techniques that answer it, the plain one first."""

    name: str
    about: str
    order: int
    members: tuple[Technique, ...]

    def for_mode(self, mode: str) -> tuple[Technique, ...]:
        return tuple(t for t in self.members if mode in t.modes)

    def baseline(self, mode: str) -> Technique:
        return self.for_mode(mode)[0]


@cache
def list_axes() -> tuple[Axis, ...]:
    """All axes in their order, found by importing ``generator.techniques``."""
    package = importlib.import_module("generator.techniques")
    found = []
    for folder in pkgutil.iter_modules(package.__path__, "generator.techniques."):
        if not folder.ispkg:
            continue
        axis = importlib.import_module(folder.name)
        members = [_load_technique(entry.name) for entry in pkgutil.iter_modules(axis.__path__, folder.name + ".")]
        members.sort(key=lambda t: (not t.baseline, t.quality, t.name))
        about = (axis.__doc__ or "").strip()
        found.append(Axis(folder.name.rsplit(".", 1)[1].replace("_", "-"), about, axis.ORDER, tuple(members)))
    return tuple(sorted(found, key=lambda a: (a.order, a.name)))


def _load_technique(module_name: str) -> Technique:
    module = importlib.import_module(module_name)
    (cls,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Technique) and value.__module__ == module_name
    ]
    return cls()


def find_technique(axis: str, name: str) -> Technique | None:
    """The technique with that axis and name, or ``None``."""
    return next((t for a in list_axes() if a.name == axis for t in a.members if t.name == name), None)
