"""The cheapest or the smallest rented machine that does the work fast enough: the instance catalogue, costed in order.

Of a training without a target, the cheapest run: every machine is costed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from generator.case.case import Case
from generator.case.request import Request
from generator.case.workload import Workload
from generator.cost.of_case import build_cost_model
from generator.decide.candidates import Candidate
from generator.decide.device_count import choose_candidate
from generator.decide.device_group import choose_case
from generator.decide.space import open_space
from generator.errors import NothingFits, UsageError
from generator.figures import format_figure
from generator.model import ModelSpec
from hwdetect import catalog
from hwdetect.cloud import Instance, list_instances
from hwdetect.spec import parse_spec

NODES = (1, 2, 4, 8, 16, 32)
AT_A_TIME = (1, 4, 16, 64, 256)
"""answers that are tried together where a target is named and nobody said how many: four times as many are at most four times as fast"""
SHOWN = 5
SOONER = 0.9
"""of an answer's seconds on the cheaper machine, from which on a dearer one is shown where nobody said how long one may take (ours)"""
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted: the least tokens per day, the most seconds for an answer (inference); ``None``: no such wish."""

    goal: str = "cheapest"
    tokens_per_day: float | None = None
    max_latency: float | None = None

    def is_met_by(self, offer: Offer) -> bool:
        fast = self.tokens_per_day is None or offer.tokens_per_day >= self.tokens_per_day
        return fast and (self.max_latency is None or offer.latency_seconds <= self.max_latency)

    def rank_by(self, workload: Workload) -> str:
        """What the best offer has least of, as ``Offer`` names it. A training without a target ends when it has seen its tokens: its
        cheapest machine is that on which the run costs least. A server is paid by the hour, busy or not."""
        if self.goal == "smallest":
            return "devices"
        ends = workload.mode == "train" and self.tokens_per_day is None
        return "usd_per_million_tokens" if ends else "usd_per_hour"

    def describe(self) -> str:
        words = []
        if self.tokens_per_day is not None:
            words.append(f"{self.tokens_per_day:,.0f} tokens a day")
        if self.max_latency is not None:
            words.append(f"an answer within {self.max_latency:g} s")
        return " and ".join(words) or "that it fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Some nodes of an instance type, and the work on them. ``bound``: no plan makes more tokens per day on it."""

    instance: Instance
    nodes: int
    name: str
    case: Case
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One rented machine with its best plan. ``copies``: how many times it fits side by side (inference)."""

    hardware: str
    cloud: str
    best: Candidate
    copies: int
    concurrency: int
    usd_per_hour: float | None
    price_source: str | None
    price_read: str | None
    price_region: str | None = None
    spot_usd_per_hour: float | None = None
    spot_read: str | None = None

    @property
    def tokens_per_day(self) -> float:
        return self.best.estimate.tokens_per_second * self.copies * DAY

    @property
    def latency_seconds(self) -> float:
        return self.best.estimate.step_seconds

    @property
    def usd_per_million_tokens(self) -> float | None:
        if self.usd_per_hour is None or not self.tokens_per_day:
            return None
        return self.usd_per_hour * 24 / self.tokens_per_day * 1e6


def check_target(target: Target, request: Request) -> None:
    """Raises ``UsageError`` for wishes that contradict each other."""
    if request.hardware is not None or request.measure:
        raise UsageError("--goal looks for a machine, and --hardware or --measure names one", "give one of them")
    stated = next((option for option, text in request.stated.items() if text is not None), None)
    if stated:
        raise UsageError(f"--goal looks for a machine, and {stated} says something of one", "give one of them")


def list_concurrencies(request: Request, target: Target, workload: Workload) -> tuple[int, ...]:
    """How many answers at a time are tried on each machine, the fewest first: what was said, or those that may reach the target."""
    if workload.mode != "infer" or request.concurrency or target.tokens_per_day is None:
        return (workload.concurrency,)
    return (workload.concurrency, *(n for n in AT_A_TIME if n > workload.concurrency))


def find_offers(
    spec: ModelSpec,
    workload: Workload,
    target: Target,
    say: Callable[[str], None],
    concurrencies: tuple[int, ...] = (),
) -> tuple[Offer, ...]:
    """Machines that meet ``target``, the best by its goal first, at most ``SHOWN``, each with the fewest answers at a time that do.
    Raises ``NothingFits`` if none does."""
    tried = concurrencies or (workload.concurrency,)
    if target.rank_by(workload) == "usd_per_million_tokens":
        return rank_by_tokens(spec, workload, target, say)
    offers: list[Offer] = []
    costed: list[Offer] = []
    slow: list[Machine] = []
    for machine in list_machines(target.goal, spec, workload):
        if target.tokens_per_day is not None and machine.bound < target.tokens_per_day:
            slow.append(machine)
            continue
        say(f"costing {machine.name}")
        offer = make_fast_offer(machine, target, tried)
        if offer is None:
            continue
        costed.append(offer)
        if target.is_met_by(offer) and (not offers or pays(offer, offers[-1], target, workload)):
            offers.append(offer)
            if len(offers) == SHOWN:
                break
    if not offers:
        slow.sort(key=lambda m: (m.bound, m.name), reverse=True)
        costed += [offer for machine in slow[:SHOWN] if (offer := make_fast_offer(machine, target, tried))]
        raise explain_no_offer(spec.name, target, max(costed, key=lambda o: o.tokens_per_day, default=None))
    return tuple(offers)


def pays(dearer: Offer, cheaper: Offer, target: Target, workload: Workload) -> bool:
    """Whether a machine is worth a look beside one that comes first by the goal. Where nobody said how fast a server must be, the cheapest
    may be slow: what is shown beside it answers sooner."""
    open_ended = target.tokens_per_day is None and target.max_latency is None
    open_ended &= workload.mode == "infer" and target.rank_by(workload) == "usd_per_hour"
    return not open_ended or dearer.latency_seconds <= SOONER * cheaper.latency_seconds


def rank_by_tokens(
    spec: ModelSpec, workload: Workload, target: Target, say: Callable[[str], None]
) -> tuple[Offer, ...]:
    """Each priced instance type, on the fewest nodes on which the work fits: more of them make tokens sooner, and none of them
    cheaper. Raises ``NothingFits`` if there is no such."""
    say("costing every priced machine")
    offers: dict[str, Offer] = {}
    for machine in list_machines(target.goal, spec, workload):
        if machine.instance.name not in offers and (offer := make_offer(machine)):
            offers[machine.instance.name] = offer
    if not offers:
        raise explain_no_offer(spec.name, target, None)
    ranked = sorted(offers.values(), key=lambda o: (o.usd_per_million_tokens, o.usd_per_hour, o.hardware))
    return tuple(ranked[:SHOWN])


def explain_no_offer(model: str, target: Target, fastest: Offer | None) -> NothingFits:
    if fastest is None:
        return NothingFits(
            f"{model} fits no machine of the instance catalogue", "`perfgen plan --hardware` tries others"
        )
    return NothingFits(
        f"no machine of the instance catalogue reaches {target.describe()} with {model}: the fastest, {fastest.hardware}, makes "
        f"{fastest.tokens_per_day:,.0f} tokens a day, {format_figure(fastest.latency_seconds)} s a {'step' if target.max_latency is None else 'batch'}",
        "lower the target, or change the work",
    )


def order_instances(goal: str) -> Iterator[tuple[Instance, int]]:
    """Every instance type with accelerators, alone and in numbers: by price, or by devices, their memory, price,
    and what comes with them: most instance types have no price in the catalogue."""
    every = [(i, n) for i in list_instances() if i.device for n in NODES if n == 1 or i.devices > 1]

    def price(pair: tuple[Instance, int]) -> float:
        return pair[0].price.usd_per_hour * pair[1] if pair[0].price else float("inf")

    def size(pair: tuple[Instance, int]) -> tuple:
        instance, nodes = pair
        memory = catalog.load(instance.device or "").memory_bytes or 0
        devices, host = instance.devices * nodes, (instance.vcpus * nodes, instance.memory_bytes * nodes)
        return devices, devices * memory, price(pair), nodes, *host, instance.name

    if goal == "cheapest":
        priced = (p for p in every if p[0].price)
        return iter(sorted(priced, key=lambda p: (price(p), p[0].devices * p[1], p[1], p[0].name)))
    return iter(sorted(every, key=size))


def list_machines(goal: str, spec: ModelSpec, workload: Workload) -> Iterator[Machine]:
    """The machines in the order of the goal, without those whose kind of accelerator no project can be made for. Raises what was said
    of them where none is left: ``NothingFits`` of projects, else the ``UsageError`` of the first."""
    refused: UsageError | None = None
    unmade = None
    is_empty = True
    for instance, nodes in order_instances(goal):
        name = instance.name if nodes == 1 else f"{nodes}x{instance.name}"
        try:
            case = choose_case(parse_spec(name), spec, workload)
        except UsageError as error:
            refused = refused or error
            continue
        if why := case.explain_unemitted():
            unmade = unmade or f"no project is made for {case.device.name}: {why}"
            continue
        is_empty = False
        yield Machine(instance=instance, nodes=nodes, name=name, case=case, bound=bound_tokens_per_day(case))
    if is_empty and unmade:
        raise NothingFits(f"{spec.name} on the machines of the instance catalogue: {unmade}", "change what it says")
    if is_empty and refused:
        raise refused


def bound_tokens_per_day(case: Case) -> float:
    """At the data sheet's highest rate, with nothing but the matrix products: no plan is faster."""
    full, training = case.workload.train == "full", case.workload.mode == "train"
    passes = (3 if full else 2) if training else 1
    operations = 2.0 * passes * max(case.model.active_params - case.model.embedding_params, 1)
    return max(rate for _, rate in case.device.peak_flops) * case.devices / operations * DAY


def make_fast_offer(machine: Machine, target: Target, concurrencies: tuple[int, ...]) -> Offer | None:
    """The best plan on a machine with the fewest answers at a time that meet the target, else with those that make the most tokens;
    ``None`` where none fits that can be emitted."""
    fastest: Offer | None = None
    for count in concurrencies:
        workload = replace(machine.case.workload, concurrency=count)
        offer = make_offer(replace(machine, case=replace(machine.case, workload=workload)))
        if offer is None or (fastest and offer.tokens_per_day <= fastest.tokens_per_day):
            break
        fastest = offer
        if target.is_met_by(offer):
            break
    return fastest


def make_offer(machine: Machine) -> Offer | None:
    """The best plan on a machine; ``None`` where none fits that can be emitted."""
    case, price = machine.case, machine.instance.price
    try:
        # what can only be planned is no offer: it is not looked for, on any of hundreds of machines
        best = choose_candidate(open_space(case, build_cost_model(case)).emitted)
    except UsageError:  # a pin that this device cannot do
        return None
    if best is None or best.planned:
        return None
    return Offer(
        hardware=machine.name,
        cloud=machine.instance.cloud,
        best=best,
        copies=case.devices // best.layout.devices if case.workload.mode == "infer" else 1,
        concurrency=case.workload.concurrency,
        usd_per_hour=price.usd_per_hour * machine.nodes if price else None,
        price_source=price.source if price else None,
        price_read=price.read if price else None,
        price_region=price.region if price else None,
        spot_usd_per_hour=price.spot_usd_per_hour * machine.nodes if price and price.spot_usd_per_hour else None,
        spot_read=price.spot_read if price else None,
    )


def use_whole_machine(request: Request) -> Request:
    """A rented machine is paid whole: all of its devices that make the work faster are used, unless the user said otherwise."""
    return replace(request, optimize_for="time") if request.mode == "train" and not request.optimize_for else request


def use_machine(request: Request, offer: Offer, workload: Workload) -> Request:
    """The request on the offered machine, with as many answers at a time as were found to meet the target there."""
    concurrency = request.concurrency if offer.concurrency == workload.concurrency else offer.concurrency
    return replace(request, hardware=offer.hardware, concurrency=concurrency)
