"""What a technique is. One file under ``techniques/<axis>/`` declares one; nothing else names it.

A technique says whether it can be used (``obstacle``), beside what it cannot (its traits, and ``conflict``), how the
script that runs changes (``effects``, read by the cost model), what it writes (``edits``), and on what evidence it may
be preferred.
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
from generator.techniques.traits import EXCLUDED_BY_TRAIT, NEEDED_BY_TRAIT, Trait

PACKAGE = "generator.techniques"


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


Reasons = Mapping[Trait, str]


class Technique:
    """Base of every technique. The docstring of a subclass is its documentation: a title, then under fixed headings what
    it does, when it loses, and known problems.

    ``axis`` and ``name`` are the folder and the file; ``modes`` where it applies. ``baseline`` marks the plain member
    of the axis. ``quality`` is what it may do to convergence or outputs: 0 nothing, 1 to 3 rising risk, stated in
    ``quality_note``; above 0 it is taken only when the user allows it or nothing else fits. ``request_only`` names why
    it is never chosen unasked, ``--allow`` or ``--pin`` (it is another algorithm, or another result). ``compiles``: it needs a C++ compiler at
    run time. ``scheduler``: the ``lr_scheduler_type`` without which it does not work, "" where any will do. ``adds``:
    settings, files and libraries that it brings into the project: each must earn 1 % of a step.
    ``last_resort``: above 0, taken only where nothing of a lower one fits (the guides' rule for DeepSpeed, 1, and
    offloading, 2), or a step is several times as fast (``decide.device_count.RESORT_GAIN``). ``accumulates``: False where the gradients of a backward pass
    do not outlive it, so that a micro-batch must be the whole batch. ``explain_unemitted`` says why
    it is planned and priced in a case, and no project can be made of it yet.

    ``provides`` are its traits. ``excludes`` and ``needs`` give, by trait of the others, why it cannot stand beside one
    that has it, or that lacks it (``{other}`` is that one's name, ``{able}`` the names of those that have it). A
    subclass keeps its parents' and adds to them; every member of an axis but the plain one has what its package lists
    under ``PROVIDES``.
    """

    axis: ClassVar[str]
    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = ("train",)
    baseline: ClassVar[bool] = False
    quality: ClassVar[int] = 0
    quality_note: ClassVar[str] = ""
    request_only: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    last_resort: ClassVar[int] = 0
    accumulates: ClassVar[bool] = True
    adds: ClassVar[int] = 1
    scheduler: ClassVar[str] = ""
    evidence: ClassVar[tuple[Evidence, ...]] = ()
    provides: ClassVar[frozenset[Trait]] = frozenset()
    needs: ClassVar[Reasons] = {}
    excludes: ClassVar[Reasons] = {}

    def __init_subclass__(cls) -> None:
        """Traits are joined with those of the parents and the axis. Raises ``TypeError`` for what is not a trait, and
        ``ModuleNotFoundError`` for an axis that does not exist: at import, before anything is planned."""
        super().__init_subclass__()
        declared = (*cls.provides, *cls.needs, *cls.excludes)
        if unknown := [item for item in declared if not isinstance(item, Trait)]:
            raise TypeError(f"{cls.__name__}: not in generator/techniques/traits.py: {unknown}")
        parents = [base for base in cls.__mro__[1:] if issubclass(base, Technique)]
        cls.provides = cls.provides.union(_list_axis_traits(cls), *(base.provides for base in parents))
        for table in ("needs", "excludes"):
            inherited = {trait: why for base in reversed(parents) for trait, why in getattr(base, table).items()}
            setattr(cls, table, inherited | dict(getattr(cls, table)))

    def obstacle(self, case: Case) -> str | None:
        """Why it cannot be used in this case, or ``None``: predicate and explanation in one."""
        return None

    def explain_unemitted(self, case: Case) -> str | None:
        """Why it is planned and priced in this case, and no project is made of it; ``None`` where one is."""
        return None

    def traits(self, case: Case) -> frozenset[Trait]:
        """Those of ``provides`` that it has in this case."""
        return self.provides

    def conflict(self, other: Technique, case: Case) -> str | None:
        """Why it cannot stand beside ``other``, or ``None``: the rest, that no trait says. Ask ``explain_conflict``."""
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        """The fields of ``Execution`` that it sets."""
        return {}

    def layouts(self, case: Case) -> tuple[Layout, ...] | None:
        """The ways to divide the devices among which it lets the plan choose; ``None``: it does not say."""
        return None

    def rate_resort(self, case: Case) -> int:
        """``last_resort``, but for a case in which what it stands behind lacks what that case needs."""
        return self.last_resort

    def least_gain(self, case: Case) -> float:
        """The share by which a prediction must have it faster than others of its axis, or they are taken."""
        return 0.0

    def once_seconds(self, case: Case) -> float:
        """Seconds it costs once, before the first step (compilation)."""
        return 0.0

    def edits(self, case: Case) -> Edits:
        """What it writes into the project; asked once per plan, when ``case.layout`` is chosen."""
        return Edits()

    @property
    def id(self) -> str:
        return f"{self.axis}={self.name}"

    @property
    def title(self) -> str:
        return (self.__doc__ or self.name).strip().splitlines()[0].rstrip(".")


def _list_axis_traits(cls: type[Technique]) -> frozenset[Trait]:
    if cls.baseline or not hasattr(cls, "axis"):
        return frozenset()
    package = importlib.import_module(f"{PACKAGE}.{cls.axis.replace('-', '_')}")
    return getattr(package, "PROVIDES", frozenset())


def explain_conflict(one: Technique, other: Technique, case: Case) -> str | None:
    """Why two techniques cannot stand together, or ``None``; asked of both, so that either file may know it."""
    return _explain_refusal(one, other, case) or _explain_refusal(other, one, case)


def _explain_refusal(one: Technique, other: Technique, case: Case) -> str | None:
    """Why ``one`` refuses ``other``: a declared reason first."""
    declared = _find_declared(one, other, one.traits(case), other.traits(case))
    return declared or one.conflict(other, case)


@cache  # asked of every pair on each of hundreds of machines, which most often have the same traits
def _find_declared(one: Technique, other: Technique, traits: frozenset[Trait], theirs: frozenset[Trait]) -> str | None:
    excluded_by_traits, needed_by_traits = _join_reasons(traits)
    for reasons in (one.excludes, *excluded_by_traits):
        for trait, why in reasons.items():
            if trait in theirs:
                return why.format(other=other.name)
    for reasons in (one.needs, *needed_by_traits):
        for trait, why in reasons.items():
            able = list_providers()[trait]
            if trait not in theirs and other.axis == able[0].axis:
                return why.format(other=other.name, able=" and ".join(t.name for t in able))
    return None


@cache
def _join_reasons(traits: frozenset[Trait]) -> tuple[list[Reasons], list[Reasons]]:
    """What whoever brings these traits excludes, and needs. Of several reasons the same one is given in every run: sets have
    no order of their own."""
    ordered = [trait for trait in Trait if trait in traits]
    excluded = [EXCLUDED_BY_TRAIT[trait] for trait in ordered if trait in EXCLUDED_BY_TRAIT]
    return excluded, [NEEDED_BY_TRAIT[trait] for trait in ordered if trait in NEEDED_BY_TRAIT]


def is_asked_for(technique: Technique, case: Case) -> bool:
    """Whether the user named it: allowed, or pinned."""
    asked = {*case.workload.allow, *(f"{a}={n}" for a, n in case.workload.pins)}
    return technique.name in asked or technique.id in asked


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
    package = importlib.import_module(PACKAGE)
    folders = [folder.name for folder in pkgutil.iter_modules(package.__path__, f"{PACKAGE}.") if folder.ispkg]
    return tuple(sorted((_load_axis(folder) for folder in folders), key=lambda axis: (axis.order, axis.name)))


def _load_axis(folder: str) -> Axis:
    package = importlib.import_module(folder)
    members = [load_technique(entry.name) for entry in pkgutil.iter_modules(package.__path__, folder + ".")]
    members.sort(key=lambda t: (not t.baseline, t.quality, t.name))
    about = (package.__doc__ or "").strip()
    return Axis(folder.rsplit(".", 1)[1].replace("_", "-"), about, package.ORDER, tuple(members))


def load_technique(module_name: str) -> Technique:
    module = importlib.import_module(module_name)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Technique) and value.__module__ == module_name
    ]
    if len(classes) != 1:
        raise TypeError(f"{module_name}: one technique per file, not {len(classes)}")
    place = tuple(part.replace("_", "-") for part in module_name.split(".")[-2:])
    declared = classes[0].axis, classes[0].name
    if declared != place:  # a plan would look for it on an axis that nobody has
        raise TypeError(f"{module_name}: axis and name are those of folder and file, {place}, not {declared}")
    return classes[0]()


@cache
def list_providers() -> Mapping[Trait, tuple[Technique, ...]]:
    """The techniques that provide each trait."""
    members = [t for axis in list_axes() for t in axis.members]
    return {trait: tuple(t for t in members if trait in t.provides) for trait in Trait}


def find_technique(axis: str, name: str) -> Technique | None:
    """The technique with that axis and name, or ``None``."""
    return next((t for a in list_axes() if a.name == axis for t in a.members if t.name == name), None)
