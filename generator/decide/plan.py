"""A decided case: the choice, what it costs, what else was possible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

from generator.case.case import Case
from generator.case.sources import Work
from generator.cost import CostModel
from generator.decide.candidates import Candidate, cost_members
from generator.decide.device_count import DeviceCount, weigh_devices
from generator.decide.frontier import find_frontier
from generator.decide.notes import (
    Note,
    explain_unused_devices,
    note_adapted_experts,
    note_experts,
    note_fabric,
    note_full_memory,
    note_offload,
    note_reduction,
    note_resort,
    note_router_loss,
    note_vain_allowances,
)
from generator.decide.reasons import Decision, explain_decisions
from generator.decide.refusal import refuse_space
from generator.decide.space import Space, open_space
from generator.decide.waiting import note_waiting
from generator.errors import NothingFits
from generator.figures import format_figure
from generator.techniques.base import Technique
from generator.techniques.edits import Edits, merge_edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``runners_up`` are the fastest plans with less and less memory."""

    case: Case
    best: Candidate
    decisions: tuple[Decision, ...]
    runners_up: tuple[Candidate, ...]
    splits: tuple[Candidate, ...]
    """the same techniques with every micro-batch, up to the first that does not fit"""
    counts: tuple[DeviceCount, ...]
    """the best plan on 1, 2, 4, … devices"""
    written: tuple[tuple[Technique, Edits], ...]
    """by member: what it writes"""
    edits: Edits
    notes: tuple[Note, ...] = ()
    serving: Plan | None = None
    """for a training plan: how infer.py uses the result on the same machine"""

    @property
    def unemitted(self) -> tuple[Technique, ...]:
        """What was chosen because only it fits, or because it was pinned, and no project can be made of yet."""
        return tuple(t for t in self.best.members if t.explain_unemitted(self.case))


def decide(case: Case, cost: CostModel) -> Plan:
    """Choose, and explain. Raises ``NothingFits`` with the shortfall and the nearest plans that fit."""
    space = open_space(case, cost)
    plan = plan_space(space)
    if plan is None:
        raise refuse_space(space)
    check_latency(plan)
    return plan


def check_latency(plan: Plan) -> None:
    """Raises ``NothingFits`` for a plan that answers later than was asked for: what was chosen is then the soonest."""
    workload, seconds = plan.case.workload, plan.best.estimate.step_seconds
    if workload.max_latency is None or seconds <= workload.max_latency:
        return
    ways = ["fewer --new-tokens or --prompt-tokens"]
    ways += ["a smaller --concurrency"] if workload.concurrency > 1 else []
    ways += [f"--allow {name} ({format_figure(seconds)} s)" for name, seconds in list_faster_formats(plan)]
    raise NothingFits(
        f"no plan answers within {workload.max_latency:g} s ({workload.seq_len} tokens of prompt, {workload.new_tokens} new, "
        f"{workload.concurrency} at a time): the best takes {format_figure(seconds)} s on {plan.best.layout.devices} x {plan.case.device.name}",
        ", or ".join(filter(None, (", ".join(ways[:-1]), ways[-1]))),
    )


def list_faster_formats(plan: Plan) -> list[tuple[str, float]]:
    """Formats of served weights that would answer sooner, were they allowed, with the seconds of an answer; the fastest first."""
    rejected = ((d.axis, r) for d in plan.decisions if d.axis == "quantization" for r in d.rejected)
    seconds = {f"{axis}={r.name}": r.cost.step_seconds for axis, r in rejected if r.cost and r.fits}
    return sorted(((n, s) for n, s in seconds.items() if s < plan.best.estimate.step_seconds), key=itemgetter(1))


def plan_space(space: Space) -> Plan | None:
    """The plan of a space, explained; ``None`` if nothing fits."""
    weighed = weigh_devices(space)
    if weighed is None:
        return None
    case, space, best, counts = space.case, weighed.space, weighed.best, weighed.counts
    runners_up, splits = find_frontier(space, best), tuple(cost_members(space, best.members, best.layout))
    written = tuple((t, t.edits(replace(case, layout=best.layout))) for t in best.members)
    decisions = explain_decisions(space, best)
    return Plan(
        case=case,
        best=best,
        decisions=decisions,
        runners_up=runners_up,
        splits=splits,
        counts=counts,
        written=written,
        edits=merge_edits([(technique.id, edits) for technique, edits in written]),
        notes=(
            *explain_unused_devices(case, best, counts),
            *note_resort(case, best, weighed.resorted_from),
            *note_reduction(best),
            *note_full_memory(case, best, splits, runners_up),
            *note_experts(best),
            *note_adapted_experts(best, case.model),
            *note_router_loss(case, best),
            *note_offload(case, best),
            *note_fabric(case, best),
            *note_waiting(case, best),
            *note_vain_allowances(case, decisions),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, the work whose outside values its project reads from config.yaml, and what a reader must know."""

    work: Work
    plan: Plan
    notes: tuple[Note, ...] = ()
