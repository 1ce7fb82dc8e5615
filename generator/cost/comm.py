"""Seconds that collectives add to a step: ring volume over the slowest link, less what hides behind compute.

What is gathered and reduced, and when, is the strategy's row (``run.sharding``, generator/case/strategies.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from generator.case.strategies import SEQUENCE_FORMS, SequenceForm
from generator.cost import constants as c
from generator.cost.deepspeed import sums_all_gradients
from generator.cost.device import Rates
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.sharding import sums_whole_gradients
from generator.cost.static_memory import StaticMemory
from generator.cost.weights import compute_stored_bytes


@dataclass(frozen=True, slots=True)
class Group:
    """``ranks`` devices of a run that talk to each other, ``stride`` places apart: tensor parts next to each other, then
    sequence parts, then copies of the batch, then stages (the order of Megatron-LM, torchtitan and Accelerate)."""

    run: Execution
    ranks: int
    stride: int = 1

    def bytes_per_s(self, rates: Rates) -> float:
        """One direction, each device. A ring leaves every node once, and shares the node's network with the rings beside it; a rack
        whose nodes share switches is as one node with the networks of all."""
        per_node, linked = self.run.per_node, self.count_linked(rates)
        link = rates.link(per_node)
        if self.is_linked(rates):
            return link
        inside = max(1, min(self.ranks, linked // self.stride))
        node = rates.network_bytes_per_s or rates.port_bytes_per_s * per_node
        # linked / inside rings run beside this one, each over one device of every group: they share the network
        return min(link, node * inside / per_node)

    def count_linked(self, rates: Rates) -> int:
        """Devices that their own links join: those of a node, or of a rack."""
        return max(self.run.per_node, rates.rack)

    def is_linked(self, rates: Rates) -> bool:
        return self.run.nodes == 1 or self.ranks * self.stride <= self.count_linked(rates)

    @property
    def tree_seconds(self) -> float:
        """NCCL takes a tree for an all-reduce where latency counts, so a message waits for its depth."""
        return math.log2(self.ranks) * c.COLLECTIVE_LATENCY_SECONDS

    def ring_seconds(self, rates: Rates) -> float:
        """It has none for gathers and scatters: over many nodes a part is passed on by every other device, one after the other."""
        nodes = math.ceil(self.ranks * self.stride / self.count_linked(rates))
        if nodes == 1:
            return self.tree_seconds
        between = min(nodes, self.ranks) - 1
        return (self.ranks - 1 - between) * c.HOP_SECONDS + between * c.NETWORK_HOP_SECONDS


def compute_ring_seconds(total_bytes: float, group: Group, rates: Rates, messages: float = 1.0) -> float:
    """All-gather or reduce-scatter of ``total_bytes`` over a group."""
    return compute_message_seconds(total_bytes, group, rates, messages, group.ring_seconds(rates))


def compute_all_to_all_seconds(total_bytes: float, group: Group, rates: Rates, messages: float = 1.0) -> float:
    """Each device sends to every other by itself: nothing is passed on."""
    return compute_message_seconds(total_bytes, group, rates, messages, group.tree_seconds)


def compute_all_reduce_seconds(total_bytes: float, group: Group, rates: Rates, messages: float = 1.0) -> float:
    """A scatter and a gather in one."""
    return compute_message_seconds(total_bytes, group, rates, messages, 2 * group.tree_seconds, rounds=2.0)


def compute_message_seconds(
    total_bytes: float, group: Group, rates: Rates, messages: float, latency: float, rounds: float = 1.0
) -> float:
    """``latency``: seconds until a message of no size has been everywhere."""
    if group.ranks <= 1:
        return 0.0
    reached = group.bytes_per_s(rates) * c.COLLECTIVE_REALISED * (c.PAIR_REALISED if group.ranks == 2 else 1.0)
    # a ring passes every part but its own by each device
    volume = rounds * total_bytes * (group.ranks - 1) / group.ranks
    each = volume / messages / rounds
    ramp = messages * c.COLLECTIVE_RAMP_BYTES * each / (each + c.COLLECTIVE_RAMP_HALF_BYTES)
    return (volume + ramp) / reached + messages * latency


def compute_served_all_reduce_seconds(total_bytes: float, group: Group, rates: Rates) -> float:
    """As serving engines reduce the few bytes of a decoding step where devices read each other's memory: each reads all parts at
    once, or its share of all and then the sums of the others (vLLM's custom_all_reduce, which is off where a group spans nodes, also
    those of a rack). Elsewhere, and of many bytes, a ring."""
    ring = compute_all_reduce_seconds(total_bytes, group, rates)
    link = rates.link(group.run.per_node)
    in_a_node = group.ranks * group.stride <= group.run.per_node
    if group.ranks <= 1 or not in_a_node or not rates.peers_read or total_bytes > c.ONE_SHOT_BYTES:
        return ring
    read = min((group.ranks - 1) * total_bytes, 4 * (group.ranks - 1) / group.ranks * total_bytes)
    return min(ring, c.ONE_SHOT_SECONDS + read / (link * c.ONE_SHOT_REALISED))


def compute_tensor_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """Two all-reduces of the hidden states per block and pass (after attention and after the feed-forward); nothing hides them.

    Transformers' plans sum the gradient behind each product that reads them by itself: of queries, keys, values and the experts' input,
    counted on two processes (torch's CommDebugMode).
    """
    if run.tp <= 1:
        return 0.0
    volume = tokens * shape.hidden * BYTES[run.compute_dtype]
    passes = 2.0 + again  # forward, backward, and the forward that checkpointing repeats
    parts = Group(run, run.tp)
    if run.sequence_parallel:  # a gather and a scatter apart
        return 2 * passes * 2 * compute_ring_seconds(volume, parts, rates)
    sums = 2 * passes + (2.0 if run.own_loop else 0.0)
    return sums * compute_all_reduce_seconds(volume, parts, rates)


def compute_sequence_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """A block's exchange of a divided sequence. ``tokens`` is one device's part.

    Ring attention (context parallelism) passes every other part's keys and values by, and their gradients in the backward pass;
    Ulysses exchanges queries, keys, values and outputs, and their gradients (arXiv 2310.01889, 2309.14509).
    """
    if run.cp <= 1:
        return 0.0
    if find_sequence_form(run).exchanges_heads:
        exchange = compute_all_to_all_seconds  # one each of q, k, v and the output
        width, messages = 2.0 * shape.query + 2.0 * shape.key, 4.0
    else:
        exchange = compute_ring_seconds  # keys and values of the whole sequence, part by part
        width, messages = 2.0 * shape.key * run.cp, run.cp - 1.0
    volume = tokens * width * BYTES[run.compute_dtype]
    # the backward pass needs the same once more, and sends as much back in gradients
    return (3.0 + again) * exchange(volume, Group(run, run.cp, run.tp), rates, messages)


def find_sequence_form(run: Execution) -> SequenceForm:
    """Raises ``ValueError`` where sequences are divided and nothing says how."""
    if run.sequence_form is None:
        raise ValueError(f"cp={run.cp} divides sequences: sequence_form must be one of {', '.join(SEQUENCE_FORMS)}")
    return SEQUENCE_FORMS[run.sequence_form]


def compute_expert_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """A block's two all-to-alls per pass: tokens go to their experts and come back (Transformers docs, expert_parallelism)."""
    if run.ep <= 1 or not shape.experts:
        return 0.0
    # a token goes to several experts, each of which may be elsewhere; tensor parts that share their tokens send slices of them
    own = tokens / run.tp if run.own_loop else tokens
    sent = own * shape.hidden * shape.experts_per_token * BYTES[run.compute_dtype]
    volume = sent * shape.moe_layers / shape.layers
    return 2 * (2.0 + again) * compute_all_to_all_seconds(volume, Group(run, run.ep), rates)


class Exchange(NamedTuple):
    """Seconds of collectives that compute can hide: per micro-batch, and once per optimizer step."""

    each: float
    once: float


def compute_communication_seconds(
    shape: Shape, run: Execution, rates: Rates, static: StaticMemory, compute_seconds: float
) -> float:
    """What an optimizer step waits for: gathers and reductions beyond what overlaps with ``compute_seconds``."""
    pipeline = compute_pipeline_seconds(shape, run, rates)
    if run.dp * run.cp <= 1 or not run.sharding.exchanges:
        return pipeline
    exchange = compute_exchange(shape, run, rates, static)
    per_micro_batch = compute_exposed_seconds(exchange.each, compute_seconds)
    units = compute_unit_seconds(shape, run, static)
    at_end = exchange.once if run.sharding.reduces_at_end else compute_exposed_seconds(exchange.once, compute_seconds)
    return pipeline + run.accumulation * (per_micro_batch + units) + at_end


def compute_exposed_seconds(exchanged: float, compute_seconds: float) -> float:
    """Collectives start when the first gradients or units are there, so that some of them always shows: what hides is at most a
    share of the compute, and at most that share of themselves."""
    return max(exchanged - c.OVERLAP_SHARE * compute_seconds, (1 - c.OVERLAP_SHARE) * exchanged)


def compute_exchange(shape: Shape, run: Execution, rates: Rates, static: StaticMemory) -> Exchange:
    weights, gradient = count_exchanged_bytes(shape, run, static)
    shard = Group(run, run.shards, run.tp)
    # HSDP, and ZeRO within groups: each device's part is then averaged with those of the other copies
    copies = Group(run, run.dp * run.cp // run.shards, run.tp * run.shards)
    part = gradient / run.shards
    averaged = compute_all_reduce_seconds(part, copies, rates, max(1.0, part / c.BUCKET_BYTES))
    if not run.sharding.divides_states:
        messages = count_sums(run, gradient)
        return Exchange(each=0.0, once=compute_all_reduce_seconds(gradient, shard, rates, messages))
    if not run.sharding.divides_weights:
        ring = compute_ring_seconds(gradient, shard, rates, max(1.0, gradient / c.BUCKET_BYTES)) + averaged / 2
        if run.sharding.reduces_every_micro_batch and run.accumulation > 1:
            # to their owners after every micro-batch; the updated weights come back once
            return Exchange(each=ring, once=ring)
        # reduced gradients there and weights back; BF16_Optimizer reduces them everywhere besides
        return Exchange(each=0.0, once=(3 if sums_all_gradients(run) else 2) * ring)
    layers = shape.layers / run.pp
    each = compute_ring_seconds(weights, shard, rates, layers) * count_gathers(shape, run)
    each += compute_ring_seconds(gradient, shard, rates, layers)
    if sums_whole_gradients(run):
        return Exchange(each=0.0, once=each + averaged)
    return Exchange(each=each + averaged, once=0.0)


def count_sums(run: Execution, gradient: float) -> float:
    """All-reduces that ``gradient`` bytes of all copies are cut into: DDP's buckets, the loop's, or Megatron's one."""
    if run.sharding.summed_elements:
        each = run.sharding.summed_elements * (BYTES[run.weights_dtype] if run.train == "full" else 4.0)
        return max(1.0, gradient / each)
    return 1.0 if run.sharding.reduces_at_end else max(1.0, gradient / c.BUCKET_BYTES)


def count_gathers(shape: Shape, run: Execution) -> float:
    """How often the mean weight is gathered for a micro-batch: forward, and backward where it was let go. What checkpointing
    repeats finds it there: it runs within the backward pass, after that has gathered (torch's FSDP and DeepSpeed 0.19.8, their
    collectives counted with and without). ZeRO-3 lets go only what it keeps no place for."""
    if not run.sharding.reshards:
        return 1.0
    return 2.0 - min(1.0, run.sharding.live_elements * run.pp * run.tp / shape.params)


def compute_copy_seconds(shape: Shape, run: Execution, rates: Rates, static: StaticMemory) -> Exchange:
    """What sharding copies between its buffers and the tensors of the model: each copy reads and writes, in the stream that
    computes (torch 2.13, ``_fsdp_collectives.py``: ``split_with_sizes_copy``, ``chunk_cat``; reducer.cpp)."""
    if run.dp * run.cp <= 1 or rates.on_cpu:
        return Exchange(each=0.0, once=0.0)
    weights, gradient = count_exchanged_bytes(shape, run, static)
    second = rates.elementwise_bytes_per_s
    if run.sharding.by_fsdp:
        # FSDP1 gathers into the flat parameter that the layers' weights are views of; its gradient is put together from theirs
        copied = weights * count_gathers(shape, run) if run.fsdp_version > 1 else 0.0
        both = 2 * (copied + gradient) / second
        # stages keep their weights whole for a step, and reduce once: so often they are copied
        return Exchange(each=0.0, once=both) if sums_whole_gradients(run) else Exchange(each=both, once=0.0)
    if run.sharding.buckets_every_gradient or run.sharding.summed_elements:  # into what is sent, and back
        return Exchange(each=0.0, once=4 * gradient / second)
    return Exchange(each=0.0, once=0.0)


def count_exchanged_bytes(shape: Shape, run: Execution, static: StaticMemory) -> tuple[float, float]:
    """Of all weights and of all gradients that one group of shards exchanges."""
    split = run.tp * run.pp
    compute = BYTES[run.compute_dtype]
    # DDP reduces gradients as they are, in the dtype of the weights, and Megatron its sums; FSDP's and DeepSpeed's mixed precision
    # in 16 bits
    full = BYTES[run.weights_dtype] if run.sharding.reduces_stored_dtype else compute
    if run.sharding.reduces_at_end and run.sums_dtype:
        full = BYTES[run.sums_dtype]
    gradient = static.trained * (full if run.train == "full" else 4.0) / split
    weights = (shape.params * compute if run.quant == "none" else compute_stored_bytes(shape, run)) / split
    if run.ep > 1:  # experts stay where they are, and so do their gradients where they are trained
        experts = shape.expert_params * shape.layers / split
        weights = max(0.0, weights - experts * compute)
        gradient = gradient - experts * full if run.train == "full" else gradient
    return weights, gradient


def compute_pipeline_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Hidden states and their gradients from stage to stage, once per micro-batch and while the pipeline fills."""
    if run.pp <= 1:
        return 0.0
    # tensor parts send a part each (Narayanan et al. 2021, section 4.1); the loop's have whole states where they divide no tokens
    senders = 1 if run.own_loop and not run.sequence_parallel else run.tp
    volume = run.micro_batch * run.seq_len / (run.cp * senders) * shape.hidden * BYTES[run.compute_dtype]
    stages = Group(run, 2, run.devices // run.pp)
    hop = volume / (stages.bytes_per_s(rates) * c.COLLECTIVE_REALISED) + c.COLLECTIVE_LATENCY_SECONDS
    return 2 * hop * (run.accumulation + run.pp - 1)


def compute_unit_seconds(shape: Shape, run: Execution, static: StaticMemory) -> float:
    """FSDP1 under PEFT's wrap policy: every adapter matrix is a unit with its own collectives."""
    fsdp1 = run.sharding.by_fsdp and run.fsdp_version == 1
    if not fsdp1 or run.train != "lora" or "foak" in run.fused_kernels:
        return 0.0
    collectives = 3.0 + (1.0 if run.checkpoint_every else 0.0)  # gathered twice, or three times, and reduced once
    matrices = 2 * shape.layers * len(static.adapted)  # A and B of each adapter
    return matrices * collectives * c.UNIT_SECONDS
