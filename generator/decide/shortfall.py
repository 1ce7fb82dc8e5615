"""By how much a configuration is too large."""

from __future__ import annotations

from generator.cost.activations import count_score_bytes
from generator.cost.estimate import GIB
from generator.cost.execution import BYTES
from generator.cost.weights import compute_unpacked_expert_bytes
from generator.decide.candidates import Candidate
from generator.decide.space import Space


def is_host_short(nearest: Candidate) -> bool:
    """Whether host memory, not the device's, is what it lacks most."""
    estimate = nearest.estimate
    host, limit = sum(part.value for part in estimate.host_memory), estimate.host_limit_gib or 0.0
    return host > limit > 0 and host / limit >= estimate.fullness


def count_scarcest_gib(space: Space, nearest: Candidate) -> tuple[float, float]:
    """Needed and usable GiB, of the host where that is scarcer, else of a device."""
    if is_host_short(nearest):
        return sum(part.value for part in nearest.estimate.host_memory), nearest.estimate.host_limit_gib or 0.0
    return nearest.estimate.peak_memory_gib, space.find_usable_gib(nearest.execution)


def describe_shortfall(space: Space, nearest: Candidate) -> str:
    """By how much a candidate that does not fit is too large."""
    needed, usable = count_scarcest_gib(space, nearest)
    of_host = " of host memory" if is_host_short(nearest) else ""
    return f"{needed:.1f} GiB{of_host} needed, {usable:.1f} usable: {needed - usable:.1f} GiB short"


def explain_scores(space: Space, candidate: Candidate) -> str | None:
    """What eager attention writes out for one block, where that alone is more than half of a device, and why there is no other."""
    run, cost = candidate.execution, candidate.cost
    if run.mode != "train" or run.attention != "eager" or cost.limit_gib is None:
        return None
    per_pair = count_score_bytes(cost.shape, BYTES[run.compute_dtype], run)
    gib = per_pair * run.micro_batch * run.seq_len**2 / (run.cp * run.tp) / GIB
    if gib < cost.limit_gib / 2:
        return None
    why = space.obstacles.get("attention=sdpa")
    return f"eager attention writes out {gib:.1f} GiB of scores in each block" + (f": {why}" if why else "")


def explain_unpacked_experts(candidate: Candidate) -> str | None:
    """Why a base in 4 bits is larger than a quarter. Transformers 5.23 keeps the experts of a block in one tensor (modeling_mixtral.py)
    and its quantizer replaces Linear layers (integrations/bitsandbytes.py). bitsandbytes 0.50 could pack such a tensor
    (nn/parametrize.py), and PEFT 0.21.2 would not let go of it: ``_remove_parametrizations`` finds no ``_LoraFactorsProxy``."""
    gib = compute_unpacked_expert_bytes(candidate.cost.shape, candidate.execution) / GIB
    if not gib:
        return None
    return (
        f"its experts stay in 16 bits, {gib:.1f} GiB of them: bitsandbytes packs Linear layers, and Transformers keeps the experts "
        "of a block in one tensor"
    )
