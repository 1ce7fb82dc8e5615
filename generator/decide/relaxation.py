"""What every completion of a partly decided set of techniques needs at least: time, and memory of device and host."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from generator.case.layout import ONE_DEVICE, Layout
from generator.case.optimizer_states import ADAM, LEAST_STATES, OptimizerState
from generator.cost.bounds import FASTEST, NEUTRAL, choose_fastest
from generator.cost.execution import Execution, Split
from generator.cost.static_memory import identify_memory
from generator.decide.candidates import describe_layout, describe_script, rank_seconds, split_batch
from generator.decide.space import LayoutMemo, Space
from generator.techniques.base import Axis, Technique

DEFAULTS = {f.name: f.default for f in fields(Execution)}

Members = tuple[Technique, ...]
Splits = tuple[Split, ...]
"""smallest micro-batch first"""


class Relaxation:
    """A case with the techniques in ``open``, those on the ``free`` axes undecided: a field that they may set has the value that
    costs least time, or, asked for memory, every value that they may give it. ``memory_axes`` are those that memory depends on.
    """

    def __init__(
        self,
        space: Space,
        open_members: Mapping[str, tuple[Technique, ...]],
        free: Sequence[Axis],
        memory_axes: Sequence[Axis],
    ):
        self.space, self.case, self.open = space, space.case, open_members
        self.free, self.memory_axes = free, memory_axes
        self._savings: dict[tuple[Members, ...], list[dict[str, Any]]] = {}
        every = (t for open_to_it in open_members.values() for t in open_to_it)
        self.setting_optimizers = [t for t in every if "optimizer" in space.effects(t, ONE_DEVICE)]
        self._optimizers: dict[Members, list[OptimizerState]] = {}
        self._standing: dict[tuple[Members, int], tuple[Members, ...]] = {}

    def list_standing(self, members: Members, depth: int) -> tuple[Members, ...]:
        """Of each free axis from ``depth`` on, the open members that can stand beside these."""
        if (members, depth) not in self._standing:
            foes = self.space.list_foes(members)
            listed = (self.open[axis.name] for axis in self.free[depth:])
            self._standing[members, depth] = tuple([tuple([t for t in every if t not in foes]) for every in listed])
        return self._standing[members, depth]

    def relax(self, members: Members, known: LayoutMemo, depth: int) -> dict[str, Any]:
        """The fastest value of every field that the free axes from ``depth`` on may set beside ``members``."""
        standing = self.list_standing(members, depth)
        if not all(standing):  # what leaves no choice on an axis is bounded as if nothing stood there
            free = self.free[depth:]
            standing = tuple(have or self.open[axis.name] for axis, have in zip(free, standing, strict=True))
        if standing not in known.relaxed:
            known.relaxed[standing] = join_fastest([pick_fastest(known, every) for every in standing])
        return known.relaxed[standing]

    def build_run(self, members: Members, layout: Layout, depth: int) -> Execution:
        """The script of what is decided, with the free axes from ``depth`` on at their fastest."""
        known = self.space.remember(layout)
        if known.run is None:
            known.run = Execution(**describe_script(self.case), **describe_layout(layout))
        decided = dict(self.relax(members, known, depth))
        for technique in members:
            decided.update(known.effects(technique))
        return known.run.but(**decided)

    def states_fit(self, run: Execution) -> bool:
        """Whether weights and states fit once the optimizer is decided."""
        return self.find_static_gib(run) <= self.space.find_usable_gib(run)

    def weights_fit(self, run: Execution) -> bool:
        """Whether the device holds the weights, whatever the optimizer and the batch."""
        return self.states_fit(run.but(optimizer=LEAST_STATES))

    def some_states_fit(self, members: Members, run: Execution) -> bool:
        """Whether the device holds weights and states of one of the optimizers beside ``members``, whatever the batch."""
        if self.states_fit(run):
            return True
        # most that do not fit do not even without states
        usable = self.space.find_usable_gib(run)
        return self.weights_fit(run) and any(gib <= usable for gib in self.list_static_gib(members, run))

    def list_static_gib(self, members: Members, run: Execution) -> Iterator[float]:
        """What weights and states take at the optimizer step's moment, by optimizer."""
        return (self.find_static_gib(run.but(optimizer=kind)) for kind in self.list_optimizers(members, run))

    def find_static_gib(self, run: Execution) -> float:
        """What weights and states take at the optimizer step's moment; inference has none."""
        return 0.0 if run.mode == "infer" else self.space.cost.static_gib(run)

    def list_optimizers(self, members: Members, run: Execution) -> list[OptimizerState]:
        """The optimizers that the open techniques beside ``members`` may set, what is leanest in the first run that was asked for first."""
        foes = self.space.list_foes(members)
        beside = tuple([t for t in self.setting_optimizers if t not in foes])
        if beside not in self._optimizers:
            kinds = dict.fromkeys(self.space.effects(t, ONE_DEVICE)["optimizer"] for t in beside) or (ADAM,)
            leanest_first = sorted(kinds, key=lambda kind: self.find_static_gib(run.but(optimizer=kind)))
            self._optimizers[beside] = leanest_first
        return self._optimizers[beside]

    def least_seconds(self, members: Members, run: Execution, splits: Splits) -> float:
        """None of the splits takes less: each part of a step's time only grows, or only falls, with the micro-batch."""
        known = self.space.memo.seconds
        key = (*vars(run).values(), splits[0], splits[-1])
        if key not in known:
            known[key] = self.space.cost.least_parts(run, splits[0], splits[-1])
        return rank_seconds(self.case, members, known[key])

    def may_fit(self, members: Members, layout: Layout, splits: Splits) -> bool:
        """Whether any completion may fit with the smallest micro-batch, or the whole batch at once."""
        if self.case.workload.mode == "infer":
            return True
        leanest = self.find_leanest(members, layout)
        return any(leanest.fit(split) for split in dict.fromkeys((splits[0], splits[-1])))

    def find_leanest(self, members: Members, layout: Layout) -> LeanestRuns:
        """What is decided with each way in which the rest may save memory; none where weights and states alone are too large, for the
        device or for the host."""
        run = self.build_run(members, layout, 0)
        fits = self.some_states_fit(members, run) and self.host_may_hold(run, split_batch(self.case, layout.dp))
        return LeanestRuns(
            self, members, run, [run.but(**saving) for saving in self.list_savings(members)] if fits else []
        )

    def host_may_hold(self, run: Execution, splits: Splits) -> bool:
        """Whether the host can hold what any completion offloads: what is undecided adds to it."""
        limit = self.space.cost.host_limit_gib
        if limit is None:
            return True
        run = run.but(dataloader_workers=0, checkpoint_offload=False)
        return self.find_host_gib(run, (splits[0], splits[-1])) <= limit

    def host_may_serve(self, run: Execution) -> bool:
        """Whether the host can hold what serving takes of it whatever is undecided: weights that are offloaded only add to it."""
        return run.mode != "infer" or self.space.cost.fits_host(run.but(offload_params="none"))

    def find_least_host_gib(self, run: Execution) -> float:
        """What the host must hold of any completion, whatever its optimizer and batch: offloaded activations, and gradients that
        are summed over passes, only add to it."""
        bare = run.but(dataloader_workers=0, checkpoint_offload=False, optimizer=LEAST_STATES)
        return self.find_host_gib(bare, ((1, 1),))

    def find_host_gib(self, run: Execution, splits: Splits) -> float:
        """The least that the host must hold with one of the splits."""
        if self.space.cost.host_limit_gib is None:
            return 0.0
        known = self.space.memo.hosts
        key = (*vars(run).values(), splits)
        if key not in known:
            known[key] = min(self.space.cost.host_gib(run.but_split(split)) for split in splits)
        return known[key]

    def is_small_enough(self, run: Execution, split: Split) -> bool:
        return self.find_peak_gib(run, split) <= self.space.find_usable_gib(run)

    def find_peak_gib(self, run: Execution, split: Split) -> float:
        known = self.space.memo.peaks
        # most were asked for before: what is the same to memory is looked up before a run is made of it
        key = identify_memory(run), split
        if key not in known:
            known[key] = self.space.cost.peak_gib(run.but_split(split))
        return known[key]

    def list_savings(self, members: Members) -> list[dict[str, Any]]:
        """Every combination of what the undecided axes can set beside ``members`` that memory depends on, the optimizer apart."""
        foes = self.space.list_foes(members)
        beside = tuple([tuple([t for t in self.open[axis.name] if t not in foes]) for axis in self.memory_axes])
        if beside not in self._savings:
            savings: list[dict[str, Any]] = [{}]
            for standing in beside:
                distinct = self._list_distinct(standing)
                savings = [have | more for have in savings for more in distinct]
            # what is slowest saves most: it is asked first
            savings.sort(key=lambda saving: sum(FASTEST[n](v) for n, v in saving.items()), reverse=True)
            self._savings[beside] = savings
        return self._savings[beside]

    def _list_distinct(self, members: Members) -> list[dict[str, Any]]:
        effects = [self.space.effects(t, ONE_DEVICE) for t in members]
        names = {name for e in effects for name in e} - NEUTRAL - {"optimizer", "optimizer_fused"}
        each = [{name: e.get(name, DEFAULTS[name]) for name in names} for e in effects]
        return [values for place, values in enumerate(each) if values not in each[:place]]


def pick_fastest(known: LayoutMemo, members: Members) -> dict[str, Any]:
    """The fastest value of each field that the members of one axis set; asked again by every search that has them open."""
    if members not in known.fastest:
        effects = [known.effects(t) for t in members]
        names = {name for e in effects for name in e}
        known.fastest[members] = {n: choose_fastest(n, [e.get(n, DEFAULTS[n]) for e in effects]) for n in names}
    return known.fastest[members]


def join_fastest(each: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a field that several axes may set, the fastest of their values."""
    fastest: dict[str, Any] = {}
    for values in each:
        for name, value in values.items():
            fastest[name] = choose_fastest(name, [fastest[name], value]) if name in fastest else value
    return fastest


class LeanestRuns:
    """A partly decided script, once for each way in which what is undecided may save memory, the optimizer apart."""

    def __init__(self, relaxation: Relaxation, members: Members, decided: Execution, runs: list[Execution]):
        self.relaxation, self.members, self.decided, self.runs = relaxation, members, decided, runs
        self._lean: list[OptimizerState] = []

    def fit(self, split: Split) -> bool:
        """Whether one of them fits with this split."""
        return any(self.fits(run, split) for run in self.runs)

    def fits(self, run: Execution, split: Split) -> bool:
        """Whether one of them fits with one of the optimizers."""
        return any(self.relaxation.is_small_enough(run.but(optimizer=kind), split) for kind in self.list_optimizers())

    def list_optimizers(self) -> Iterator[OptimizerState]:
        """All but those that need as much as one before in everything that memory depends on. The first is asked at once: where it
        fits, nobody asks for the others."""
        relaxation, cost = self.relaxation, self.relaxation.space.cost
        kinds = relaxation.list_optimizers(self.members, self.decided)
        yield kinds[0]
        if not self._lean:
            self._lean = cost.drop_heavier_optimizers(self.decided, kinds)
        yield from self._lean[1:]


def select_fitting(splits: Splits, fits: Callable[[Split], bool]) -> Splits:
    """The splits that fit. Memory grows with the micro-batch but for the last step: the whole batch at once sums no gradients
    between passes."""
    *several, last = splits
    fitting: Splits = ()
    if several and fits(several[0]):
        fitting = tuple(several[: find_first_misfit(several, 1, fits)])
    return (*fitting, last) if fits(last) else fitting


def find_first_misfit(splits: Sequence[Split], start: int, fits: Callable[[Split], bool]) -> int:
    """The place from ``start`` on of the first split that does not fit; none after it does."""
    return bisect_left(splits, True, lo=start, key=lambda split: not fits(split))


def divide_axes(root: Space) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes to enumerate; those whose fields have a known order, in the order in which they are decided; and those of them
    that device memory depends on."""
    known, key = root.memo.axes, tuple(root.open.values())
    if key not in known:  # every search asks
        known[key] = _divide_axes(root)
    return known[key]


def _divide_axes(root: Space) -> tuple[list[Axis], list[Axis], list[Axis]]:
    fields_of: dict[str, set[str]] = {axis.name: list_fields(root, axis) for axis in root.axes}
    decided = [axis for axis in root.axes if not fields_of[axis.name] <= FASTEST.keys()]
    bounded = [axis for axis in root.axes if axis not in decided]

    def rank(axis: Axis) -> tuple[bool, bool, bool]:
        # undecided, it is as fast as when it is used and costs nothing once: no bound is close
        paid_once = any(t.once_seconds(root.case) for t in root.open[axis.name])
        # the optimizer's states alone rule out most of what does not fit
        return not paid_once, fields_of[axis.name] <= NEUTRAL, "optimizer" not in fields_of[axis.name]

    return decided, sorted(bounded, key=rank), [axis for axis in bounded if not fields_of[axis.name] <= NEUTRAL]


def list_fields(root: Space, axis: Axis) -> set[str]:
    """The fields of ``Execution`` that the members of an axis set; an axis that divides devices touches them all."""
    members = root.open[axis.name]
    if any(t.id in root.layouts for t in members):
        return {"strategy"}
    return {name for t in members for name in root.effects(t, ONE_DEVICE)}
