"""Seconds that collectives add to a step: ring volume over the slowest link, less what hides behind compute."""

from __future__ import annotations

import math
from dataclasses import dataclass

from generator.case.strategies import SEQUENCE_FORMS, SequenceForm
from generator.cost import constants as c
from generator.cost.device import Rates
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import Static, quantized_bytes
from generator.cost.shape import Shape


@dataclass(frozen=True, slots=True)
class Group:
    """``ranks`` devices of a run that talk to each other, ``stride`` places apart: tensor parts next to each other, then
    sequence parts, then copies of the batch, then stages (the order of Megatron-LM, torchtitan and Accelerate)."""

    run: Execution
    ranks: int
    stride: int = 1

    def bytes_per_s(self, rates: Rates) -> float:
        """One direction, each device. A ring leaves every node once, and shares the node's network with the rings beside it."""
        per_node = self.run.per_node
        link = rates.link(per_node)
        if self.run.nodes == 1 or self.ranks * self.stride <= per_node:
            return link
        inside = max(1, min(self.ranks, per_node // self.stride))
        node = rates.network_bytes_per_s or rates.port_bytes_per_s * per_node
        return min(link, node * inside / per_node)


def ring_seconds(
    total_bytes: float, group: Group, rates: Rates, messages: float = 1.0, share: float = c.COLLECTIVE_REALISED
) -> float:
    """All-gather or reduce-scatter of ``total_bytes`` over a group; an all-reduce is both.

    ``share`` of the link's rate is reached: ``COLLECTIVE_REALISED`` where the device does nothing else.
    """
    if group.ranks <= 1:
        return 0.0
    volume = total_bytes * (group.ranks - 1) / group.ranks / (group.bytes_per_s(rates) * share)
    return volume + messages * math.log2(group.ranks) * c.COLLECTIVE_LATENCY_SECONDS


def tensor_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """Two all-reduces of the hidden states a block and pass (after attention and after the feed-forward); nothing hides them."""
    if run.tp <= 1:
        return 0.0
    volume = tokens * shape.hidden * BYTES[run.compute_dtype]
    return 2 * (2.0 + again) * 2 * ring_seconds(volume, Group(run, run.tp), rates)


def sequence_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """A block's exchange of a divided sequence. ``tokens`` is one device's part.

    Ring attention (context parallelism) passes every other part's keys and values by, and their gradients in the backward pass;
    Ulysses exchanges queries, keys, values and outputs, and their gradients (arXiv 2310.01889, 2309.14509).
    """
    if run.cp <= 1:
        return 0.0
    size = BYTES[run.compute_dtype]
    heads = sequence_form_of(run).exchanges_heads
    width = 2.0 * shape.query + 2.0 * shape.key if heads else 2.0 * shape.key * run.cp
    messages = 4.0 if heads else run.cp - 1.0
    return (3.0 + again) * ring_seconds(tokens * width * size, Group(run, run.cp, run.tp), rates, messages)


def sequence_form_of(run: Execution) -> SequenceForm:
    """Raises ``ValueError`` where sequences are divided and nothing says how."""
    if run.sequence_form is None:
        raise ValueError(f"cp={run.cp} divides sequences: sequence_form must be one of {', '.join(SEQUENCE_FORMS)}")
    return SEQUENCE_FORMS[run.sequence_form]


def expert_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """A block's two all-to-alls a pass: tokens go to their experts and come back (Transformers docs, expert_parallelism)."""
    if run.ep <= 1 or not shape.experts:
        return 0.0
    volume = (
        tokens * shape.hidden * shape.experts_per_token * BYTES[run.compute_dtype] * shape.moe_layers / shape.layers
    )
    return 2 * (2.0 + again) * ring_seconds(volume, Group(run, run.ep), rates)


def communication_seconds(shape: Shape, run: Execution, rates: Rates, fixed: Static, compute_seconds: float) -> float:
    """What an optimizer step waits for: gathers and reductions beyond what overlaps with ``compute_seconds``."""
    pipeline = _pipeline_seconds(shape, run, rates)
    if run.dp * run.cp <= 1 or not run.sharding.exchanges:
        return pipeline
    split = run.tp * run.pp
    compute = BYTES[run.compute_dtype]
    # DDP reduces gradients as they are, in the dtype of the weights; FSDP's and DeepSpeed's mixed precision in 16 bits
    full = BYTES[run.weights_dtype] if run.sharding.reduces_stored_dtype else compute
    gradient = fixed.trained * (full if run.train == "full" else 4.0) / split
    weights = (shape.params * compute if run.quant == "none" else quantized_bytes(shape, run)) / split
    if run.ep > 1:  # experts stay where they are
        weights -= shape.expert_params * shape.layers * compute
        gradient -= shape.expert_params * shape.layers * compute
    layers = shape.layers / run.pp
    shard = Group(run, run.shards, run.tp)
    copies = Group(run, run.dp * run.cp // run.shards, run.tp * run.shards)
    share = c.OVERLAPPED_REALISED
    each = once = 0.0
    if run.sharding.divides_weights:
        gathers = 2.0 + (1.0 if run.checkpoint_every else 0.0) if run.sharding.reshards else 1.0
        each = ring_seconds(weights, shard, rates, layers, share) * gathers
        each += ring_seconds(gradient, shard, rates, layers, share)
        part = gradient / run.shards
        each += 2 * ring_seconds(part, copies, rates, max(1.0, part / c.BUCKET_BYTES), share)
    else:
        ring = ring_seconds(gradient, shard, rates, gradient / c.BUCKET_BYTES, share)
        if (
            run.sharding.reduces_every_micro_batch and run.accumulation > 1
        ):  # every micro-batch's gradients are reduced to their owners
            each, once = ring, ring
        else:
            once = 2 * ring
    units = _unit_seconds(shape, run, fixed)
    hidden_share = c.OVERLAP_SHARE * compute_seconds
    per_micro = max(each - hidden_share, (1 - c.OVERLAP_SHARE) * each)
    return pipeline + run.accumulation * (per_micro + units) + max(once - hidden_share, (1 - c.OVERLAP_SHARE) * once)


def _pipeline_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Hidden states and their gradients from stage to stage, once a micro-batch and while the pipeline fills."""
    if run.pp <= 1:
        return 0.0
    volume = run.micro_batch * run.seq_len / run.cp * shape.hidden * BYTES[run.compute_dtype]
    stages = Group(run, 2, run.devices // run.pp)
    hop = volume / (stages.bytes_per_s(rates) * c.COLLECTIVE_REALISED) + c.COLLECTIVE_LATENCY_SECONDS
    return 2 * hop * (run.accumulation + run.pp - 1)


def _unit_seconds(shape: Shape, run: Execution, fixed: Static) -> float:
    """FSDP1 under PEFT's wrap policy: every adapter matrix is a unit with its own collectives."""
    fsdp1 = run.sharding.by_fsdp and run.fsdp_version == 1
    if not fsdp1 or run.train != "lora" or "foak" in run.fused_kernels:
        return 0.0
    collectives = 3.0 + (1.0 if run.checkpoint_every else 0.0)
    return 2 * shape.layers * len(fixed.adapted) * collectives * c.UNIT_SECONDS
