"""What a plan for a rented machine says of the search for it."""

from __future__ import annotations

from generator.case.workload import Workload
from generator.decide.goal import Offer, Target
from generator.emit.plan_document import GoalRecord, OfferRecord


def describe_goal(
    offers: tuple[Offer, ...], target: Target, workload: Workload, concurrencies: tuple[int, ...] = ()
) -> GoalRecord:
    """What `plan --json` adds under the key ``goal``."""
    return GoalRecord(
        goal=target.goal,
        ranked_by=target.rank_by(workload),
        target_tokens_per_day=target.tokens_per_day,
        max_latency_seconds=target.max_latency,
        concurrencies=concurrencies if workload.mode == "infer" else (),
        offers=tuple(describe_offer(offer) for offer in offers),
    )


def describe_offer(offer: Offer) -> OfferRecord:
    return OfferRecord(
        hardware=offer.hardware,
        cloud=offer.cloud,
        choice=offer.best.choice,
        devices=offer.best.layout.devices,
        copies=offer.copies,
        concurrency=offer.concurrency,
        tokens_per_day=offer.tokens_per_day,
        latency_seconds=offer.latency_seconds,
        peak_memory_gib=offer.best.estimate.peak_memory_gib,
        usd_per_hour=offer.usd_per_hour,
        usd_per_million_tokens=offer.usd_per_million_tokens,
        price_source=offer.price_source,
        price_read=offer.price_read,
        price_region=offer.price_region,
        spot_usd_per_hour=offer.spot_usd_per_hour,
        spot_read=offer.spot_read,
    )
