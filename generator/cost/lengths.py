"""Tokens of a training step where texts differ in length: what is computed, what is waited for, what must be held.

Lengths are quantiles, equally spaced, as shares of ``seq_len``. Several devices that each have texts of their own wait for the one
that computes most, once a micro-batch where weights are gathered or gradients reduced for it, else once a step.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

from generator.cost import constants as c
from generator.cost.execution import Execution

Shares = tuple[float, ...]


def count_step_tokens(run: Execution) -> float:
    """Tokens of an optimizer step over all devices, padding aside; of a generated batch the new ones, of prompts alone theirs."""
    if run.mode == "infer":
        return float(run.micro_batch) * run.dp * (run.new_tokens or run.seq_len)
    return float(run.micro_batch) * run.accumulation * run.dp * count_real_tokens(run)


def count_real_tokens(run: Execution) -> float:
    """Tokens of a sequence, padding aside."""
    return run.seq_len * compute_mean(run.length_shares) if run.length_shares else float(count_computed_tokens(run))


def count_computed_tokens(run: Execution) -> int:
    """Tokens of a sequence that are computed on average by the device that computes most, those of the padding too; what rows share is
    computed with one of them."""
    return count_sequence_tokens(run, compute_slowest_share(run))


def count_least_tokens(run: Execution) -> int:
    """As ``count_computed_tokens``, if nobody waited for another: no fewer are computed."""
    return count_sequence_tokens(run, compute_padded_share(run))


def count_sequence_tokens(run: Execution, share: float) -> int:
    spared = run.shared_tokens * (1 - 1 / run.micro_batch)
    return max(1, round(run.seq_len * share - spared))


def compute_padded_share(run: Execution) -> float:
    """Of seq_len, with the padding. A micro-batch is as long as its longest example: the expected maximum of as many draws as it has."""
    if not run.length_shares:
        return 1.0
    mean = compute_mean(run.length_shares)
    return mean + run.padding_left * (expect_longest(run.length_shares, run.micro_batch) - mean)


def compute_slowest_share(run: Execution) -> float:
    """Of seq_len, what the device with the most tokens computes of a sequence of its own."""
    shares, rows, passes = run.length_shares, run.micro_batch, run.accumulation
    if shares and run.row_order == "sorted":
        batches = run.sorted_batches
        return compute_sorted_share(shares, passes * batches, rows * passes * run.dp * batches)
    if not shares or not run.row_order or run.dp == 1:
        return compute_padded_share(run)
    if run.row_order == "dealt":
        return compute_dealt_share(shares, rows, passes, run.dp)
    meets = run.sharding.divides_weights or run.sharding.reduces_every_micro_batch or run.ep > 1
    together = 1 if meets else passes
    if run.rows != "batch":
        return expect_largest_sum(shares, rows * together, run.dp)
    mean, longest = compute_mean(shares), expect_largest_sum(list_longest(shares, rows), together, run.dp)
    return max(compute_padded_share(run), mean + run.padding_left * (longest - mean))


@cache
def compute_dealt_share(shares: Shares, rows: int, passes: int, devices: int) -> float:
    """Where the texts of a step are dealt out, the longest first, each to the micro-batch with the fewest tokens: all have the mean, but
    for that with the longest text if it and the short ones beside it have more. One text a micro-batch: sorted."""
    step = rows * passes * devices
    if rows == 1:
        return compute_sorted_share(shares, passes, step)
    mean, short = compute_mean(shares), interpolate(shares, c.SHORT_TEXTS * (len(shares) - 1))
    beyond = expect_longest(shares, step) + (rows - 1) * short - rows * mean
    return mean + max(0.0, beyond) / (rows * passes)


@cache
def compute_sorted_share(shares: Shares, parts: int, rows: int) -> float:
    """Where ``rows`` texts are sorted, and the devices compute one of ``parts`` equal pieces of them at a time: each as long as its
    longest."""
    longest = expect_longest(shares, rows)
    if parts > len(
        shares
    ):  # the upper ends are together above the mean by half of a step of all between the first and the last
        return compute_mean(shares) + (longest - shares[0]) / (2 * parts)
    ends = (interpolate(shares, (len(shares) - 1) * piece / parts) for piece in range(1, parts))
    return (sum(ends) + longest) / parts


@cache
def expect_largest_sum(shares: Shares, draws: int, devices: int) -> float:
    """Of as many sums of ``draws`` lengths as there are ``devices``, the mean of the largest, over ``draws``."""
    if draws == 1:
        return expect_longest(shares, devices)
    means = tuple(list_part_means(shares))  # each as often as another
    return max(compute_mean(shares), bound_sum(means, draws, c.LARGEST_CHANCE / devices) / draws)


@cache
def expect_longest(shares: Shares, draws: int) -> float:
    """E[max] of independent draws from quantiles: the maximum is in the k-th of n parts with probability (k/n)^m - ((k-1)/n)^m."""
    means = list_part_means(shares)
    parts = len(means)
    return sum(mean * (((k + 1) / parts) ** draws - (k / parts) ** draws) for k, mean in enumerate(means))


def list_part_means(shares: Shares) -> list[float]:
    """Of the lengths between two quantiles, the mean."""
    means = [(low + high) / 2 for low, high in pairwise(shares)]
    if len(means) > 1:
        # a single longest example says little of the last part: survivors halve over the part before it, and an exponential tail
        # that halves in d has a mean excess of d / ln 2
        means[-1] = min(means[-1], shares[-2] + (shares[-2] - shares[-3]) / math.log(2))
    return means


@cache
def list_longest(shares: Shares, draws: int) -> Shares:
    """Quantiles of the longest of ``draws`` lengths."""
    parts = len(shares) - 1
    return tuple(interpolate(shares, (place / parts) ** (1 / draws) * parts) for place in range(parts + 1))


def interpolate(values: Shares, place: float) -> float:
    low = min(int(place), len(values) - 2)
    return values[low] + (place - low) * (values[low + 1] - values[low])


def compute_mean(shares: Shares) -> float:
    return expect_longest(shares, 1)


def count_held_tokens(run: Execution) -> float:
    """Of the largest micro-batch of a run: full sequences. Texts one after the other hold their own tokens: what their sum passes with
    a chance of ``HELD_CHANCE``, or one full sequence among others of the mean."""
    full = float(run.micro_batch) * run.seq_len
    if run.rows == "batch" or not run.length_shares:
        return full
    most = bound_sum(run.length_shares, run.micro_batch, c.HELD_CHANCE)
    mean = sum(run.length_shares) / len(run.length_shares)
    held = run.seq_len * min(run.micro_batch, max(most, 1.0 + (run.micro_batch - 1) * mean))
    return held - run.shared_tokens * (run.micro_batch - 1)


@cache
def bound_sum(shares: Shares, draws: int, chance: float) -> float:
    """What the sum of ``draws`` lengths, each one of ``shares`` as often as another, passes with that chance (below a half).

    Lugannani and Rice's saddlepoint formula (1980): lengths are skewed, and a normal distribution with their deviation is passed ten
    to a hundred times as often as it says.
    """
    tilt, most = 1e-2, draws * max(shares)
    while tilt < 1e4:  # upwards, for near the largest sum of all the formula says more than there is
        mean, tail = tilt_sum(shares, draws, tilt)
        if tail <= chance:
            return min(most, mean)
        tilt *= 1.05
    return most


def tilt_sum(shares: Shares, draws: int, tilt: float) -> tuple[float, float]:
    """Mean of the sum under exponential tilting, and the chance that the sum passes it."""
    top = max(shares)
    weights = [math.exp(tilt * (share - top)) for share in shares]
    total = sum(weights)
    mean = sum(weight * share for weight, share in zip(weights, shares, strict=True)) / total
    variance = sum(weight * (share - mean) ** 2 for weight, share in zip(weights, shares, strict=True)) / total
    exponent = draws * (tilt * (mean - top) - math.log(total / len(shares)))  # tilt * sum - its cumulant: 0 or more
    spread = tilt * math.sqrt(draws * variance)
    if exponent <= 0.0 or spread <= 0.0:
        return draws * mean, 0.0
    root = math.sqrt(2.0 * exponent)
    density = math.exp(-exponent) / math.sqrt(2.0 * math.pi)
    return draws * mean, 0.5 * math.erfc(root / math.sqrt(2.0)) + density * (1.0 / spread - 1.0 / root)
