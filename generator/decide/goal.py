"""The cheapest or the smallest rented machine that does the work fast enough: the instance catalogue, costed in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from generator.case.case import Case
from generator.case.request import Request
from generator.case.workload import Workload
from generator.cost.of_case import build_cost_model
from generator.decide.candidates import Candidate
from generator.decide.device_group import choose_case
from generator.decide.search import search_space
from generator.decide.space import open_space
from generator.errors import NothingFits, UsageError
from generator.model import ModelSpec
from hwdetect import catalog
from hwdetect.instances import Instance, list_instances
from hwdetect.spec import parse_spec

GOALS = ("cheapest", "smallest")
NODES = (1, 2, 4, 8, 16, 32)
SHOWN = 5
DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is wanted: the least tokens a day, the most seconds for an answer (inference); ``None``: no such wish."""

    goal: str = "cheapest"
    tokens_per_day: float | None = None
    max_latency: float | None = None

    def met_by(self, offer: Offer) -> bool:
        fast = self.tokens_per_day is None or offer.tokens_per_day >= self.tokens_per_day
        return fast and (self.max_latency is None or offer.latency_seconds <= self.max_latency)

    def said(self) -> str:
        words = []
        if self.tokens_per_day is not None:
            words.append(f"{self.tokens_per_day:,.0f} tokens a day")
        if self.max_latency is not None:
            words.append(f"an answer within {self.max_latency:g} s")
        return " and ".join(words) or "that it fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One rented machine with its best plan. ``copies``: how many times it fits side by side (inference)."""

    hardware: str
    cloud: str
    best: Candidate
    copies: int
    usd_per_hour: float | None
    price_source: str | None
    price_read: str | None

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
    if target.max_latency is not None and request.mode != "infer":
        raise UsageError(
            "--max-latency is for answers", "use it with --mode infer; --target-tokens-per-day is for training"
        )


def find_offers(spec: ModelSpec, workload: Workload, target: Target, say: Callable[[str], None]) -> tuple[Offer, ...]:
    """Machines that meet ``target``, the best by its goal first, at most ``SHOWN``. Raises ``NothingFits`` if none does."""
    found: list[Offer] = []
    fastest: Offer | None = None
    skipped: list[tuple[float, str, Instance, int, Case]] = []
    for instance, nodes in in_order(target.goal):
        case = case_on(instance, nodes, spec, workload)
        if case is None:
            continue
        most = most_tokens_per_day(case)
        if target.tokens_per_day is not None and most < target.tokens_per_day:
            skipped.append((most, name_of(instance, nodes), instance, nodes, case))
            continue
        say(f"costing {name_of(instance, nodes)}")
        offer = offer_of(instance, nodes, case)
        if offer is None:
            continue
        if fastest is None or offer.tokens_per_day > fastest.tokens_per_day:
            fastest = offer
        if target.met_by(offer):
            found.append(offer)
            if len(found) == SHOWN:
                break
    if not found:
        for _, _, instance, nodes, case in sorted(skipped, reverse=True, key=lambda s: s[:2])[:SHOWN]:
            offer = offer_of(instance, nodes, case)
            if offer and (fastest is None or offer.tokens_per_day > fastest.tokens_per_day):
                fastest = offer
        raise none_found(spec.name, target, fastest)
    return tuple(found)


def none_found(model: str, target: Target, fastest: Offer | None) -> NothingFits:
    if fastest is None:
        return NothingFits(
            f"{model} fits no machine of the instance catalogue", "`perfgen plan --hardware` tries others"
        )
    return NothingFits(
        f"no machine of the instance catalogue reaches {target.said()} with {model}: the fastest, {fastest.hardware}, makes "
        f"{fastest.tokens_per_day:,.0f} tokens a day, {fastest.latency_seconds:.3g} s a {'step' if target.max_latency is None else 'batch'}",
        "lower the target, or change the work",
    )


def in_order(goal: str) -> Iterator[tuple[Instance, int]]:
    """Every instance type with accelerators, alone and in numbers: by price, or by devices, their memory and price."""
    every = [(i, n) for i in list_instances() if i.device for n in NODES if n == 1 or i.devices > 1]

    def price(pair: tuple[Instance, int]) -> float:
        return pair[0].price.usd_per_hour * pair[1] if pair[0].price else float("inf")

    def size(pair: tuple[Instance, int]) -> tuple:
        instance, nodes = pair
        memory = catalog.load(instance.device or "").memory_bytes or 0
        return instance.devices * nodes, instance.devices * nodes * memory, price(pair), instance.name

    if goal == "cheapest":
        return iter(sorted((p for p in every if p[0].price), key=lambda p: (price(p), p[0].name, p[1])))
    return iter(sorted(every, key=size))


def name_of(instance: Instance, nodes: int) -> str:
    return instance.name if nodes == 1 else f"{nodes}x{instance.name}"


def case_on(instance: Instance, nodes: int, spec: ModelSpec, workload: Workload) -> Case | None:
    """The work on that machine; ``None`` where perfgen does not plan for its kind of accelerator."""
    try:
        return choose_case(parse_spec(name_of(instance, nodes)), spec, workload)
    except UsageError:
        return None


def most_tokens_per_day(case: Case) -> float:
    """At the data sheet's highest rate, with nothing but the matrix products: no plan is faster."""
    full, training = case.workload.train == "full", case.workload.mode == "train"
    passes = (3 if full else 2) if training else 1
    operations = 2.0 * passes * max(case.model.active_params - case.model.embedding_params, 1)
    return max(rate for _, rate in case.device.peak_flops) * case.devices / operations * DAY


def offer_of(instance: Instance, nodes: int, case: Case) -> Offer | None:
    try:
        found = search_space(open_space(case, build_cost_model(case)), kept=1)
    except UsageError:  # a pin that this device cannot do
        return None
    if not found or not all(t.emitted for t in found[0].members):
        return None
    copies = case.devices // found[0].layout.devices if case.workload.mode == "infer" else 1
    price = instance.price
    return Offer(
        hardware=name_of(instance, nodes),
        cloud=instance.cloud,
        best=found[0],
        copies=copies,
        usd_per_hour=price.usd_per_hour * nodes if price else None,
        price_source=price.source if price else None,
        price_read=price.read if price else None,
    )


def use_machine(request: Request, offer: Offer) -> Request:
    """The request on the machine that was found."""
    return replace(request, hardware=offer.hardware)
