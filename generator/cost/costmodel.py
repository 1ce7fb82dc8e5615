"""``CostModel``: device and model once, then the cost of any number of executions. Plain floats, no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from generator.case.optimizer_states import OptimizerState
from generator.cost import constants as c
from generator.cost.activations import READ_FIELDS, BlockActivations, compute_block_activations
from generator.cost.decode import compute_cache_bytes
from generator.cost.device import Rates, compute_rates, find_communicator, find_context
from generator.cost.engines import find_engine
from generator.cost.estimate import GIB, CostItem, Estimate
from generator.cost.execution import Execution, Split
from generator.cost.host import compute_host_memory, list_host_items
from generator.cost.infer import (
    compute_inference_memory,
    compute_inference_seconds,
    compute_loading_memory,
    count_following_tokens,
    find_generation_source,
    find_held_source,
)
from generator.cost.interval import find_interval, name_kind, was_generation_measured, widen_unmeasured
from generator.cost.lengths import compute_padded_share, count_computed_tokens, count_least_tokens, count_step_tokens
from generator.cost.measured import apply_measurements
from generator.cost.memory import (
    Moment,
    compute_training_moments,
    compute_update_moment,
    count_checkpointed_blocks,
    find_peak,
    find_source,
)
from generator.cost.served_memory import find_kept_gib
from generator.cost.serving import Serving, compute_serving
from generator.cost.shape import build_shape
from generator.cost.sharding import keeps_checkpointed_inputs
from generator.cost.static_memory import STATIC_FIELDS, StaticMemory, compute_static_memory, needs_as_much
from generator.cost.time import (
    DEVICE_FIELDS,
    compute_arithmetic_seconds,
    compute_device_seconds,
    compute_training_seconds,
    find_training_source,
)
from generator.model import ModelSpec
from hwdetect.types import Device, Link, Measurement

STEADY = ("weights", "checkpoint being cast", "optimizer states", "gradients", "optimizer temporary")
"""what is allocated once, in large pieces, and leaves no holes"""
DATA_LOADING = "data loading"


class CostModel:
    """Costs executions of one model on one kind of device.

    ``device_memory_bytes`` is what one device has (on CPU: what the process may use), ``links`` the connections between
    devices of a node, ``network_bytes_per_s`` one node's rate to the others, ``nvme_bytes_per_s`` its disk's, ``measured``
    what was timed on ``accelerators`` (their indices). ``estimate`` is pure.
    """

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        *,
        device_memory_bytes: int,
        host_memory_bytes: int | None = None,
        cpu_budget: int | None = None,
        links: tuple[Link, ...] = (),
        devices_per_node: int = 1,
        network_bytes_per_s: float | None = None,
        nvme_bytes_per_s: float | None = None,
        measured: tuple[Measurement, ...] = (),
        accelerators: tuple[int, ...] = (),
        num_labels: int = 0,
        task: str = "causal-lm",
        served: bool = False,
    ):
        self.device, self.spec = device, spec
        self.on_cpu = device.kind == "cpu"
        limit = device_memory_bytes
        if self.on_cpu and host_memory_bytes is not None:
            limit = min(limit, host_memory_bytes) if limit else host_memory_bytes
        self.limit_gib = limit / GIB
        self.host_limit_gib = None if host_memory_bytes is None or self.on_cpu else host_memory_bytes / GIB
        self.cpu_budget = cpu_budget or 1
        self.shape = build_shape(spec, task, num_labels, served=served)
        rates = compute_rates(device, cpu_budget, links, network_bytes_per_s, devices_per_node, nvme_bytes_per_s)
        self.rates = apply_measurements(rates, measured, accelerators)
        self._static: dict[tuple, StaticMemory] = {}
        self._blocks: dict[tuple, BlockActivations] = {}
        self._computed: dict[tuple, dict[str, float]] = {}

    @property
    def families(self) -> int:
        """How many kinds of script, whatever their batch, were computed so far."""
        return len(self._static)

    def estimate(self, run: Execution) -> Estimate:
        """Memory and time of ``run``. Raises ``KeyError`` for a dtype, quantizer or optimizer that has no entry."""
        moment, static = self._compute_peak(run)
        kind = name_kind(self.device, run)
        served = self._measure_answer(run) if run.mode == "infer" else (0.0, 0.0)
        return Estimate(
            memory=(*self._list_memory(run, moment), *self._list_overheads(run, moment, static)),
            allocator_peak_gib=sum(moment.values()) / GIB,
            limit_gib=self.limit_gib,
            host_memory=self._list_host_memory(run, static),
            host_limit_gib=self.host_limit_gib,
            time=tuple(self._list_time(run)),
            tokens_per_step=count_step_tokens(run),
            devices=run.devices,
            ttft_seconds=served[0],
            seconds_per_token=served[1],
            time_interval=widen_unmeasured(find_interval("step_seconds", kind), self.device, run.mode),
            allocator_interval=find_interval("allocator_peak", kind),
        )

    def serve(self, run: Execution) -> Serving:
        """One copy of the model with ``run.micro_batch`` users, each of whom asks again once answered."""
        return compute_serving(self.shape, run, self._find_rates(run))

    def _measure_answer(self, run: Execution) -> tuple[float, float]:
        """Seconds to the first token and from each to the next."""
        if run.continuous:
            serving = self.serve(run)
            return serving.ttft_seconds, serving.seconds_per_token
        seconds = self._compute_seconds(run)
        first = seconds.get("prefill", 0.0)
        return first, (sum(seconds.values()) - first) / max(count_following_tokens(run), 1)

    def step_seconds(self, run: Execution) -> float:
        """``estimate(run).step_seconds``, for a search that asks for nothing else."""
        return sum(self._compute_seconds(run).values())

    def least_parts(self, run: Execution, *splits: Split) -> float:
        """The sum over the items of a step's time of the least that any of ``splits`` takes."""
        if run.length_shares:
            # padding grows with the micro-batch while its kernels gain: only without the first is each item monotone
            share = compute_padded_share(run.but(micro_batch=min(m for m, _ in splits)))
            run = run.but(length_shares=(share, share), row_order="")
        # where nothing is padded, rows one after the other have an operator and a kernel that may be slower than those of a batch
        runs = [run] if run.rows == "batch" else [run, run.but(rows="batch")]
        return sum_least(
            [self._compute_seconds(way.but_split(split)) for way in runs for split in dict.fromkeys(splits)]
        )

    def floor_seconds(self, run: Execution) -> float:
        """A time that no step like ``run`` is faster than, whatever splits its batch: soon known, and far below most. ``run`` has the
        smallest micro-batch."""
        if run.mode == "infer":
            return 0.0
        alone = count_least_tokens(run.but(shared_tokens=0))
        tokens = run.micro_batch * run.accumulation * max(1, alone - run.shared_tokens)
        return compute_arithmetic_seconds(self.shape, run, self._find_rates(run), tokens)

    def find_fastest_split(self, run: Execution, splits: Sequence[Split]) -> tuple[float, Split]:
        """The least seconds of a step with any of ``splits``, which are in order, and the last split that takes no more: what
        lies between two of them is looked at only where it may be faster."""
        timed = cache(lambda place: self._compute_seconds(run.but_split(splits[place])))

        def rank(place: int) -> tuple[float, int]:
            return sum(timed(place).values()), -place

        fastest = min({0, len(splits) - 1}, key=rank)
        between = [(0, len(splits) - 1)]
        while between:
            low, high = between.pop()
            middle = (low + high) // 2
            if middle == low:
                continue
            ends = (splits[low], splits[high])
            bound = self.least_parts(run, *ends) if run.length_shares else sum_least([timed(low), timed(high)])
            if bound <= rank(fastest)[0] * (1 + 1e-12):  # sums of the same items in another order differ by less
                fastest = min(fastest, middle, key=rank)
                between += [(low, middle), (middle, high)]
        return rank(fastest)[0], splits[fastest]

    def peak_gib(self, run: Execution) -> float:
        """``estimate(run).peak_memory_gib``, for a search that asks for nothing else."""
        moment, static = self._compute_peak(run)
        return sum(moment.values()) / GIB + sum(self._compute_overheads(run, moment, static).values())

    def peak_spread_gib(self, run: Execution, peak_gib: float) -> float:
        """How far the P90 of ``estimate(run)`` lies above ``peak_gib``, its peak: exact where it matters, near the limit."""
        interval = find_interval("allocator_peak", name_kind(self.device, run))
        above = interval.high - 1.0 if interval else 0.0
        if peak_gib * (1.0 + above) <= self.limit_gib:  # not all of the peak is the allocator's
            return peak_gib * above
        return sum(self._compute_peak(run)[0].values()) / GIB * above

    def host_gib(self, run: Execution) -> float:
        """The sum of ``estimate(run).host_memory``, for a search that asks for nothing else."""
        if self.on_cpu:
            return 0.0
        static = None if run.mode == "infer" else self._find_static(run)
        return sum(compute_host_memory(self.shape, run, static).values())

    def fits_host(self, run: Execution) -> bool:
        """Whether the host can hold its part."""
        return self.host_limit_gib is None or self.on_cpu or self.host_gib(run) <= self.host_limit_gib

    def _list_host_memory(self, run: Execution, static: StaticMemory | None) -> tuple[CostItem, ...]:
        return () if self.on_cpu else list_host_items(self.shape, run, static)

    def static_gib(self, run: Execution) -> float:
        """What no batch is small enough to save: the moment of the optimizer step."""
        return sum(compute_update_moment(run, self._find_static(run)).values()) / GIB

    def drop_heavier_optimizers(self, run: Execution, kinds: Sequence[OptimizerState]) -> list[OptimizerState]:
        """``kinds`` without those with which a run like ``run`` holds as much as with one before, or more, at every moment."""
        kept: dict[OptimizerState, StaticMemory] = {}
        for kind in kinds:
            static = self._find_static(run.but(optimizer=kind))
            if not any(needs_as_much(static, other) for other in kept.values()):
                kept[kind] = static
        return list(kept)

    def _compute_peak(self, run: Execution) -> tuple[Moment, StaticMemory | None]:
        if run.mode == "infer":
            moment = compute_inference_memory(self.shape, run)
            limit = (self.limit_gib - find_process_gib(run)) * GIB
            loading = compute_loading_memory(self.shape, run, self.spec.dtype, limit) if self.on_cpu else {}
            return max(moment, loading, key=lambda held: sum(held.values())), None
        static = self._find_static(run)
        return find_peak(compute_training_moments(self.shape, run, static))[1], static

    def _list_memory(self, run: Execution, moment: Moment) -> list[CostItem]:
        find = find_held_source if run.mode == "infer" else find_source
        return [
            CostItem(name=name, value=value / GIB, basis="derived", source=find(name, run))
            for name, value in moment.items()
            if value
        ]

    def _compute_seconds(self, run: Execution) -> dict[str, float]:
        """Of one step or generated batch, by item."""
        if run.mode == "infer":
            return compute_inference_seconds(self.shape, run, self._find_rates(run))
        # time goes with the sequences as they are, memory with the longest
        computed = count_computed_tokens(run)
        timed = run if computed == run.seq_len else run.but(seq_len=computed)
        if run.shared_tokens:  # learned from and attended to is what is not shared, too
            spared = count_computed_tokens(run.but(shared_tokens=0)) - computed
            share = min(1.0, run.trained_share * (computed + spared) / computed)
            timed = timed.but(shared_tokens=spared, trained_share=share)
        rates, static = self._find_rates(run), self._find_static(run)
        computed = self._find_device_seconds(timed, rates, static)
        seconds = compute_training_seconds(self.shape, timed, rates, static, computed)
        if not run.dataloader_workers:
            tokens = run.micro_batch * run.accumulation * timed.seq_len
            seconds[DATA_LOADING] = tokens * c.COLLATE_SECONDS_PER_TOKEN
        return seconds

    def _list_time(self, run: Execution) -> list[CostItem]:
        rates = self._find_rates(run)
        derived = "derived" if rates.basis in ("published", "measured") else rates.basis
        if run.mode == "infer" and run.offload_params != "none":
            derived = c.PAGEABLE_SHARE.basis
        if not was_generation_measured(self.device, run.mode):
            derived = "assumed"  # that shares of rates found elsewhere hold there
        items = []
        for name, value in self._compute_seconds(run).items():
            basis = "measured" if name == DATA_LOADING else derived
            infers = run.mode == "infer"
            source = find_generation_source(name, run, rates) if infers else find_training_source(name, run, rates)
            items.append(CostItem(name=name, value=value, basis=basis, source=source))
        return items

    def _find_static(self, run: Execution) -> StaticMemory:
        """What does not depend on the batch, computed once per family of executions."""
        key = STATIC_FIELDS(run)
        static = self._static.get(key)
        if static is None:
            static = self._static[key] = compute_static_memory(self.shape, run, self._find_block(run))
        return static

    def _find_block(self, run: Execution) -> BlockActivations:
        """Once per family of executions whose blocks are the same."""
        key = READ_FIELDS(run)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = compute_block_activations(self.shape, run)
        return block

    def _find_device_seconds(self, run: Execution, rates: Rates, static: StaticMemory) -> dict[str, float]:
        """Once per family of executions that compute the same on each device."""
        key = DEVICE_FIELDS(run)
        computed = self._computed.get(key)
        if computed is None:
            computed = self._computed[key] = compute_device_seconds(self.shape, run, rates, static)
        return computed

    def _find_rates(self, run: Execution) -> Rates:
        """The CPU's rates with ``run.threads`` threads: fewer leave cores idle, more than it may use wait for each other."""
        if not self.on_cpu or run.threads is None or run.threads == self.cpu_budget:
            return self.rates
        share = min(run.threads / self.cpu_budget, self.cpu_budget / run.threads * c.OVERSUBSCRIBED)
        products = {name: rate * share for name, rate in self.rates.products.items()}
        return replace(self.rates, products=products)

    def _compute_overheads(self, run: Execution, moment: Moment, static: StaticMemory | None) -> dict[str, float]:
        """GiB that the device holds beside live tensors: context or interpreter, and what the allocator cannot reuse."""
        # what comes and goes within a step; the gradients and the update do too, whatever moment is the fullest
        moving = sum(value for name, value in moment.items() if name not in STEADY) / GIB
        if static is not None:  # but for a buffer that stays
            moving += (static.gradients - static.lasting_gradients + static.step_temporary) / GIB
        if self.on_cpu:
            retained = 0.0
            if static is not None:
                recomputed, _ = count_checkpointed_blocks(self.shape, run)
                freed = run.micro_batch * run.seq_len * static.block.peak * recomputed
                retained = c.CPU_RECOMPUTED_RETAINED * freed / GIB
            return {
                "interpreter": float(find_process_gib(run)),
                "fragmentation": c.CPU_FRAGMENTATION * moving + retained,
            }
        if self.takes_share(run):  # its cache is one piece, and what it counts is what is allocated
            return {"context": float(find_context(self.device.vendor)), **find_kept_gib(run)}
        share = c.RETAINED_FRAGMENTATION if keeps_checkpointed_inputs(run) else c.FRAGMENTATION
        overheads = {"context": float(find_context(self.device.vendor)), "fragmentation": share * moving}
        if run.devices > 1:
            overheads["communicator"] = float(find_communicator(self.device.vendor))
        return overheads

    def takes_share(self, run: Execution) -> bool:
        """Whether its engine takes a share of the device's memory as it starts, and keeps within that."""
        return bool(find_engine(run.engine).memory_share) and not self.on_cpu

    def compute_slots_gib(self, run: Execution, context: int) -> float:
        """Keys and values that its engine writes as it starts, on a CPU: of whole contexts, whatever is asked. 0: as they come."""
        part = find_engine(run.engine).slot_tokens if self.on_cpu else 0
        slot = part and (math.ceil(context / part) + 1) * part
        return compute_cache_bytes(self.shape, run, float(slot)) / GIB

    @property
    def context_gib(self) -> float:
        """What a process holds of a device before it does anything."""
        return float(find_context(self.device.vendor))

    def _list_overheads(self, run: Execution, moment: Moment, static: StaticMemory | None) -> list[CostItem]:
        context, communicator = find_context(self.device.vendor), find_communicator(self.device.vendor)
        sources = {
            "interpreter": ("measured", find_process_gib(run).source),
            "context": ("published" if context.basis == c.PUBLISHED else "assumed", context.source),
            "communicator": ("published" if communicator.basis == c.PUBLISHED else "assumed", communicator.source),
            "graphs": ("assumed", c.GRAPH_GIB.source),
            "fragmentation": ("measured", c.CPU_FRAGMENTATION.source)
            if self.on_cpu
            else ("derived", c.FRAGMENTATION.source),
        }
        return [
            CostItem(name=name, value=value, basis=sources[name][0], source=sources[name][1])
            for name, value in self._compute_overheads(run, moment, static).items()
        ]


def find_process_gib(run: Execution) -> c.Constant:
    """Of the interpreter with its libraries."""
    return find_engine(run.engine).process_gib if run.mode == "infer" else c.PROCESS_GIB


def sum_least(timed: Sequence[Mapping[str, float]]) -> float:
    """Of every item the least."""
    if len(timed) == 1:
        return sum(timed[0].values())
    names = dict.fromkeys(name for seconds in timed for name in seconds)
    return sum(min(seconds.get(name, 0.0) for seconds in timed) for name in names)
