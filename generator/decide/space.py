"""What may be chosen in a case: techniques without obstacle, pins applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any

from generator.case.case import Case
from generator.case.layout import ONE_DEVICE, Layout
from generator.case.limits import MEMORY_SHARE
from generator.cost import CostModel
from generator.cost.execution import Execution
from generator.cost.served_memory import find_kept_gib
from generator.errors import UsageError, suggest_names
from generator.techniques.base import Axis, Technique, explain_conflict, is_asked_for, list_axes

LAST = 2
"""the farthest resort"""
HEADROOM_SHARE = 0.03
"""Share of the limit that a plan must leave free: the aimed median error of the memory model (issue "decision engine")."""


def find_usable_gib(cost: CostModel, run: Execution) -> float:
    """What a run may need of each device: all but the headroom; of an engine that takes a share of the memory as it starts, and does
    not start where that is too little, of its share."""
    return cost.limit_gib * find_memory_share(cost, run) * (1 - HEADROOM_SHARE)


def find_memory_share(cost: CostModel, run: Execution) -> float:
    """Of each device, what the engine is told to take (in hundredths); 1 where it takes what it needs. It takes it beside the context
    and the communicators, which are there before: on a small device they may need more than is left by default."""
    if not run.engine or not cost.takes_share(run):
        return 1.0
    before = cost.context_gib + find_kept_gib(run).get("communicator", 0.0)
    return max(0.01, min(MEMORY_SHARE, math.floor(100 * (1 - before / cost.limit_gib)) / 100))


SEARCH_QUESTIONS = 2
"""to the cost model that take as long as a search of one level which finds nothing: one for each number of devices, of which a
machine of 72 devices a node has 86"""


@dataclass(slots=True)
class LayoutMemo:
    """What is asked again and again of devices that are divided in one way."""

    effects: Callable[[Technique], Mapping[str, Any]]
    """the fields of ``Execution`` that a technique sets there"""
    run: Execution | None = None
    """the script before any technique"""
    fastest: dict[tuple[Technique, ...], dict[str, Any]] = field(default_factory=dict)
    relaxed: dict[tuple[tuple[Technique, ...], ...], dict[str, Any]] = field(default_factory=dict)
    """of the members that are open on each axis, the fastest value of every field"""


@dataclass(slots=True)
class Memo:
    """What is asked again and again of one case, whatever part of its space is looked at."""

    conflicts: dict[tuple[str, str], str | None] = field(default_factory=dict)
    foes: dict[tuple[Technique, ...], frozenset[Technique]] = field(default_factory=dict)
    foes_of: dict[Technique, frozenset[Technique]] = field(default_factory=dict)
    risks: dict[Technique, int] = field(default_factory=dict)
    resorts: dict[Technique, int] = field(default_factory=dict)
    members: dict[tuple[tuple[Technique, ...], int, int], tuple[Technique, ...]] = field(default_factory=dict)
    layouts: dict[Layout, LayoutMemo] = field(default_factory=dict)
    peaks: dict[tuple, float] = field(default_factory=dict)
    seconds: dict[tuple, float] = field(default_factory=dict)
    hosts: dict[tuple, float] = field(default_factory=dict)
    costed: dict[tuple, list] = field(default_factory=dict)
    best_splits: dict[tuple, Any] = field(default_factory=dict)
    decided: dict[tuple, tuple] = field(default_factory=dict)
    axes: dict[tuple, tuple] = field(default_factory=dict)
    misfits: dict[tuple, list] = field(default_factory=dict)
    """by branch, the techniques and the memory with which nothing of it fits"""
    ways: dict[tuple, tuple[Layout, ...]] = field(default_factory=dict)
    """by what divides the devices, and how many of them there may be"""
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen in a case: per axis the members without obstacle, and for the others why not.

    A part of a space (``narrowed``, ``limited``) keeps the ``root`` that it is a part of: bounds computed there hold in it.
    """

    case: Case
    cost: CostModel
    axes: tuple[Axis, ...]
    open: Mapping[str, tuple[Technique, ...]]
    obstacles: Mapping[str, str]
    layouts: Mapping[str, tuple[Layout, ...]]
    """by the id of the technique that divides the devices"""
    least_devices: int = 1
    most_devices: float = math.inf
    most_gib: float = math.inf
    """a narrower limit than the device's own"""
    accepted: int = 0
    """how far a resort is none here"""
    memo: Memo = field(default_factory=Memo, repr=False)
    branches: dict[tuple, Any] = field(default_factory=dict, repr=False)
    """of a root: where ``search`` starts from, by decided techniques and layout; ``None`` for what cannot hold weights and states"""
    _root: Space | None = field(default=None, repr=False)

    @property
    def root(self) -> Space:
        return self._root or self

    @property
    def asked(self) -> int:
        """How often the cost model was asked: the time that a search takes, in a unit that no machine and no clock changes."""
        memo = self.memo
        costed = sum(map(len, memo.costed.values())) + len(memo.best_splits) + SEARCH_QUESTIONS * memo.searches
        return self.cost.families + len(memo.peaks) + len(memo.seconds) + len(memo.hosts) + costed

    def find_usable_gib(self, run: Execution) -> float:
        """What a plan may need of each device."""
        return min(self.most_gib, find_usable_gib(self.cost, run))

    def members(self, axis: Axis, risk: int, resort: int = LAST) -> tuple[Technique, ...]:
        """The members of ``axis`` that may be tried when ``risk`` and ``resort`` are the most that is accepted. Where nothing
        else is open (a pin), resorts are always."""
        known, key = self.memo.members, (self.open[axis.name], risk, resort)
        if key not in known:
            safe = tuple(t for t in self.open[axis.name] if self.rate_risk(t) <= risk)
            known[key] = tuple(t for t in safe if self.rate_resort(t) <= resort) or safe
        return known[key]

    def rate_risk(self, technique: Technique) -> int:
        """What it may do to convergence here."""
        known = self.memo.risks
        if technique not in known:
            known[technique] = rate_risk(technique, self.case)
        return known[technique]

    def rate_resort(self, technique: Technique) -> int:
        """How far a resort it is here."""
        known = self.memo.resorts
        if technique not in known:
            resort = technique.rate_resort(self.case)
            known[technique] = resort if resort > self.accepted else 0
        return known[technique]

    def accepting(self, resort: int) -> Space:
        """The same, but that resorts up to ``resort`` are none. What is known of times and memory holds there too."""
        root = self.root
        memo = replace(root.memo, resorts={}, members={}, costed={}, best_splits={}, searches=0)
        again = replace(root, accepted=resort, memo=memo)
        bare = again.narrowed(self.open) if self is not root else again
        return replace(bare, least_devices=self.least_devices, most_devices=self.most_devices, most_gib=self.most_gib)

    def conflict(self, a: Technique, b: Technique) -> str | None:
        """Why ``a`` and ``b`` cannot stand together."""
        known = self.memo.conflicts
        key = (a.id, b.id)
        if key not in known:
            known[key] = known[b.id, a.id] = explain_conflict(a, b, self.case)
        return known[key]

    def list_foes(self, members: tuple[Technique, ...]) -> frozenset[Technique]:
        """All techniques that can be used here and cannot stand together with one of ``members``."""
        known = self.memo.foes
        if members not in known:
            # sets of techniques grow by one at a time
            known[members] = self.list_foes(members[:-1]) | self._find_foes(members[-1]) if members else frozenset()
        return known[members]

    def _find_foes(self, technique: Technique) -> frozenset[Technique]:
        known, mode = self.memo.foes_of, self.case.workload.mode
        if technique not in known:
            others = (t for axis in self.axes if axis.name != technique.axis for t in axis.for_mode(mode))
            usable = (t for t in others if t.id not in self.obstacles)
            known[technique] = frozenset(t for t in usable if self.conflict(technique, t))
        return known[technique]

    def remember(self, layout: Layout) -> LayoutMemo:
        """What is known of devices divided so."""
        known = self.memo.layouts.get(layout)
        if known is None:
            case = replace(self.case, layout=layout)
            known = self.memo.layouts[layout] = LayoutMemo(cache(lambda technique: technique.effects(case)))
        return known

    def effects(self, technique: Technique, layout: Layout) -> Mapping[str, Any]:
        """The fields of ``Execution`` that a technique sets on devices divided so."""
        return self.remember(layout).effects(technique)

    def layouts_of(self, members: tuple[Technique, ...]) -> tuple[Layout, ...]:
        """The ways to divide the devices that ``members`` leave open."""
        dividing = next((t.id for t in members if t.id in self.layouts), None)
        known, key = self.memo.ways, (dividing, self.least_devices, self.most_devices)
        if key not in known:  # asked for each set of techniques, of each number of devices
            every = (ONE_DEVICE,) if dividing is None else self.layouts[dividing]
            known[key] = tuple(x for x in every if self.least_devices <= x.devices <= self.most_devices)
        return known[key]

    def list_counts(self) -> tuple[int, ...]:
        """Every number of devices that some member of the space can use."""
        every = [x for members in self.open.values() for t in members for x in self.layouts.get(t.id, ())]
        counts = {x.devices for x in every or [ONE_DEVICE]}
        return tuple(sorted(n for n in counts if self.least_devices <= n <= self.most_devices))

    def narrowed(self, open_members: Mapping[str, tuple[Technique, ...]]) -> Space:
        """The part with only these members on their axes. What was not open before (another than a pinned one) opens a new root."""
        root = self.root
        inside = all(t in root.open[axis] for axis, members in open_members.items() for t in members)
        if not inside:
            layouts = {t.id: t.layouts(self.case) for members in open_members.values() for t in members}
            more = {name: ways for name, ways in layouts.items() if ways is not None}
            joined = {**self.open, **open_members}
            return replace(self, open=joined, layouts={**self.layouts, **more}, branches={}, _root=None)
        return replace(self, open={**self.open, **open_members}, _root=root)

    @property
    def emitted(self) -> Space:
        """The part of which a project can be made, but for axes where there is nothing else."""
        kept = {
            axis: tuple(t for t in members if not t.explain_unemitted(self.case)) or members
            for axis, members in self.open.items()
        }
        return self if kept == dict(self.open) else self.narrowed(kept)

    def limited(self, *, least: int = 1, most: float = math.inf, gib: float = math.inf) -> Space:
        """The part that uses from ``least`` to ``most`` devices, and at most ``gib`` of each."""
        return replace(
            self,
            least_devices=max(self.least_devices, least),
            most_devices=min(self.most_devices, most),
            most_gib=min(self.most_gib, gib),
            _root=self.root,
        )


def open_space(case: Case, cost: CostModel) -> Space:
    """Obstacles and pins applied. Raises ``UsageError`` for a pin that is unknown or impossible."""
    mode = case.workload.mode
    pins = _collect_pins(case, mode)
    _check_allowed(case)
    open_members: dict[str, tuple[Technique, ...]] = {}
    obstacles: dict[str, str] = {}
    used = tuple(a for a in list_axes() if a.for_mode(mode))
    for axis in used:
        members = []
        for technique in axis.for_mode(mode):
            why = _explain_foreign(technique, case) or technique.obstacle(case)
            why = why or _explain_unasked(technique, case) or _explain_undivided(technique, case)
            if why:
                obstacles[technique.id] = why
            else:
                members.append(technique)
        if axis.name in pins:
            members = [_resolve_pin(axis, pins[axis.name], obstacles, case)]
        open_members[axis.name] = tuple(members)
    offered = {t.id: t.layouts(case) for members in open_members.values() for t in members}
    layouts = {name: ways for name, ways in offered.items() if ways is not None}
    space = Space(case, cost, used, open_members, obstacles, layouts)
    _check_pins(space, [open_members[axis][0] for axis in pins])
    return space


def _check_pins(space: Space, pinned: list[Technique]) -> None:
    """Raises ``UsageError`` for two pins that cannot stand together."""
    for a, b in combinations(pinned, 2):
        if why := space.conflict(a, b):
            first, second = (space.case.workload.name_pin(t.axis, t.name) for t in (a, b))
            raise UsageError(f"{first} and {second} cannot stand together: {why}", "drop one of them")


def _explain_undivided(technique: Technique, case: Case) -> str | None:
    """A technique that divides devices, and finds no way to, has no plan."""
    return None if technique.layouts(case) != () else "it finds no way to divide these devices"


OF_A_COMPILER = ("parallelism", "offload", "precision", "checkpointing", "optimizer", "loss", "compile")
"""axes of what a compiler of graphs must have: FSDP2 needs DTensor on the device, fused and 8-bit optimizers kernels, and activations
are offloaded by streams"""


def _explain_foreign(technique: Technique, case: Case) -> str | None:
    """A project with a training of its own has what its code holds, and no more; a training of which none is made is priced with
    that too where other techniques need more than its framework has."""
    skeleton = case.vendor.skeleton
    if skeleton is None or technique.id in skeleton.techniques:
        return None
    if case.skeleton is None and (case.workload.mode != "train" or technique.axis not in OF_A_COMPILER):
        return None
    return f"it is no part of the project that is made for {case.vendor.framework}"


def _explain_unasked(technique: Technique, case: Case) -> str | None:
    if technique.request_only and not is_asked_for(technique, case):
        return f"{technique.request_only}; only on request: --allow {technique.id}"
    return None


def _collect_pins(case: Case, mode: str) -> dict[str, str]:
    pins: dict[str, str] = {}
    known = {a.name for a in list_axes() if a.for_mode(mode)}
    for axis, name in case.workload.pins:
        if axis not in known:
            hint = _name_nearest(axis, sorted(known), "axes are")
            raise UsageError(f"--pin {axis}={name}: there is no axis {axis}", hint)
        if pins.get(axis, name) != name:
            first, second = (case.workload.name_pin(axis, which) for which in (pins[axis], name))
            raise UsageError(f"{first} and {second} contradict each other")
        pins[axis] = name
    return pins


def _name_nearest(wrong: str, known: Sequence[str], which: str) -> str:
    listed = f"{which} {', '.join(known)}"
    near = suggest_names(wrong, known)
    return f"{near} {listed}" if near else listed


def _check_allowed(case: Case) -> None:
    known = {name for a in list_axes() for t in a.members for name in (t.name, t.id)}
    for name in case.workload.allow:
        if name not in known:
            hint = suggest_names(name, sorted(known), "`perfgen techniques` lists them")
            raise UsageError(f"--allow {name}: there is no such technique", hint)


def _resolve_pin(axis: Axis, name: str, obstacles: Mapping[str, str], case: Case) -> Technique:
    mode = case.workload.mode
    names = [t.name for t in axis.for_mode(mode)]
    if name not in names:
        hint = _name_nearest(name, names, f"{axis.name} has")
        raise UsageError(f"--pin {axis.name}={name}: no such technique", hint)
    pinned = next(t for t in axis.for_mode(mode) if t.name == name)
    if pinned.id in obstacles:
        option = case.workload.name_pin(axis.name, name)
        raise UsageError(f"{option} cannot be used here: {obstacles[pinned.id]}", "drop it, or change what it says")
    return pinned


def rate_risk(technique: Technique, case: Case) -> int:
    """What it may do to convergence; nothing where the user asked for it."""
    return 0 if not technique.quality or is_asked_for(technique, case) else technique.quality
