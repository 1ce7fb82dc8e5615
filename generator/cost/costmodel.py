"""``CostModel``: device and model once, then the cost of any number of executions. Plain floats, no I/O."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter

from generator.cost import constants as c
from generator.cost.device import rates_of
from generator.cost.estimate import GIB, Estimate, Part
from generator.cost.execution import Execution
from generator.cost.host import host_parts
from generator.cost.infer import KV_SOURCE, inference_memory, inference_time
from generator.cost.measured import with_measured
from generator.cost.memory import (
    SOURCES,
    Static,
    checkpointed,
    peak_of,
    retains_inputs,
    static,
    training_moments,
    update_moment,
)
from generator.cost.shape import shape_of
from generator.cost.time import training_time
from generator.model import ModelSpec
from hwdetect.types import Device, Link, Measurement

INFER_SOURCES = {
    **SOURCES,
    "kv cache": KV_SOURCE,
    "prefill activations": "widest point of one block over the prompt (Transformers implementation)",
    "decode buffers": "torch.cat holds the old and the new cache of one layer",
}


STATIC_FIELDS = attrgetter(*(f.name for f in fields(Execution) if f.name not in ("micro_batch", "accumulation")))
"""everything but the batch; one call into C, because it is asked for every candidate"""


class CostModel:
    """Costs executions of one model on one kind of device.

    ``device_memory_bytes`` is what one device has (on CPU: what the process may use), ``links`` the connections between
    devices of a node, ``network_bytes_per_s`` one node's rate to the others, ``measured``
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
        measured: tuple[Measurement, ...] = (),
        accelerators: tuple[int, ...] = (),
        num_labels: int = 0,
        task: str = "causal-lm",
    ):
        self.device, self.spec = device, spec
        self.on_cpu = device.kind == "cpu"
        limit = device_memory_bytes
        if self.on_cpu and host_memory_bytes is not None:
            limit = min(limit, host_memory_bytes) if limit else host_memory_bytes
        self.limit_gib = limit / GIB
        self.host_limit_gib = None if host_memory_bytes is None or self.on_cpu else host_memory_bytes / GIB
        self.cpu_budget = cpu_budget or 1
        self.shape = shape_of(spec, task, num_labels)
        rates = rates_of(device, cpu_budget, links, network_bytes_per_s, devices_per_node)
        self.rates = with_measured(rates, measured, accelerators)
        self._static: dict[tuple, Static] = {}

    def estimate(self, run: Execution) -> Estimate:
        """Memory and time of ``run``. Raises ``KeyError`` for a dtype, quantizer or optimizer that has no entry."""
        named, fixed = self._memory(run)
        sources = SOURCES
        if run.mode == "infer":
            sources = INFER_SOURCES
            tokens = float(run.micro_batch) * (run.new_tokens if run.new_tokens > 1 else run.seq_len)
        else:
            tokens = float(run.micro_batch) * run.accumulation * run.dp * computed_tokens(run) * (1 - run.padding_share)
        memory = [
            Part(name=name, value=value / GIB, basis="derived", source=sources[name])
            for name, value in named.items()
            if value
        ]
        allocated = sum(named.values()) / GIB
        memory += self._overheads(run, named, fixed)
        return Estimate(
            memory=tuple(memory),
            allocator_peak_gib=allocated,
            limit_gib=self.limit_gib,
            host_memory=() if self.on_cpu else host_parts(self.shape, run, fixed),
            host_limit_gib=self.host_limit_gib,
            time=tuple(self._time(run)),
            tokens_per_step=tokens,
            devices=run.devices,
        )

    def step_seconds(self, run: Execution) -> float:
        """``estimate(run).step_seconds``, for a search that asks for nothing else."""
        return sum(part.value for part in self._time(run))

    def least_parts(self, run: Execution, *splits: tuple[int, int]) -> float:
        """The sum over the parts of a step's time of the least that any of ``splits`` (micro-batch, accumulation) takes."""
        timed = [self._time(run.but(micro_batch=m, accumulation=a)) for m, a in dict.fromkeys(splits)]
        if len(timed) == 1:
            return sum(part.value for part in timed[0])
        least = dict.fromkeys((part.name for parts in timed for part in parts), 0.0)
        by_name = [{part.name: part.value for part in parts} for parts in timed]
        return sum(min(parts.get(name, 0.0) for parts in by_name) for name in least)

    def peak_gib(self, run: Execution) -> float:
        """``estimate(run).peak_memory_gib``, for a search that asks for nothing else."""
        named, fixed = self._memory(run)
        return sum(named.values()) / GIB + sum(part.value for part in self._overheads(run, named, fixed))

    def static_gib(self, run: Execution) -> float:
        """What no batch is small enough to save: the moment of the optimizer step."""
        return sum(update_moment(run, self._fixed(run)).values()) / GIB

    def _memory(self, run: Execution) -> tuple[dict[str, float], Static | None]:
        if run.mode == "infer":
            return inference_memory(self.shape, run), None
        fixed = self._fixed(run)
        return peak_of(training_moments(self.shape, run, fixed))[1], fixed

    def _time(self, run: Execution) -> list[Part]:
        if run.mode == "infer":
            return inference_time(self.shape, run, self._rates(run))
        timed = run if run.computed_share == 1.0 else run.but(seq_len=computed_tokens(run))
        time = training_time(self.shape, timed, self._rates(run), self._fixed(run))
        if not run.dataloader_workers:
            seconds = run.micro_batch * run.accumulation * timed.seq_len * c.COLLATE_SECONDS_A_TOKEN
            time.append(Part(name="data loading", value=seconds, basis="measured", source=c.COLLATE_SOURCE))
        return time

    def _fixed(self, run: Execution) -> Static:
        """What does not depend on the batch, computed once a family of executions."""
        key = STATIC_FIELDS(run)
        found = self._static.get(key)
        if found is None:
            found = self._static[key] = static(self.shape, run)
        return found

    def _rates(self, run: Execution):
        """The CPU's rates with ``run.threads`` threads: fewer leave cores idle, more than it may use wait for each other."""
        if not self.on_cpu or run.threads is None or run.threads == self.cpu_budget:
            return self.rates
        share = min(run.threads / self.cpu_budget, self.cpu_budget / run.threads * c.OVERSUBSCRIBED)
        products = {name: rate * share for name, rate in self.rates.products.items()}
        return replace(self.rates, products=products)

    def _overheads(self, run: Execution, named: dict[str, float], fixed: Static | None) -> list[Part]:
        """What the device holds beside live tensors: context or interpreter, workspaces, what the allocator cannot reuse."""
        steady = ("weights", "optimizer states", "gradients", "optimizer temporary")
        moving = sum(value for name, value in named.items() if name not in steady) / GIB
        if fixed is not None:
            moving += (fixed.gradients + fixed.step_temporary) / GIB
        if self.on_cpu:
            retained = 0.0
            if fixed is not None:
                freed = run.micro_batch * run.seq_len * fixed.block.peak * checkpointed(self.shape, run)[0]
                retained = c.CPU_RECOMPUTED_RETAINED * freed / GIB
            return [
                Part(name="interpreter", value=c.PROCESS_GIB, basis="measured", source=c.PROCESS_SOURCE),
                Part(
                    name="fragmentation",
                    value=c.CPU_FRAGMENTATION * moving + retained,
                    basis="measured",
                    source=c.CPU_FRAGMENTATION_SOURCE,
                ),
            ]
        share = c.RETAINED_FRAGMENTATION if retains_inputs(run) else c.FRAGMENTATION
        context = c.CONTEXT_GIB.get(self.device.vendor, c.CONTEXT_DEFAULT_GIB)
        parts = [
            Part(name="context", value=context, basis="published", source=c.CONTEXT_SOURCE),
            Part(name="fragmentation", value=share * moving, basis="derived", source=c.FRAGMENTATION_SOURCE),
        ]
        if run.devices > 1:
            parts.append(
                Part(name="communicator", value=c.COMMUNICATOR_GIB, basis="published", source=c.COMMUNICATOR_SOURCE)
            )
        return parts


def computed_tokens(run: Execution) -> int:
    """Tokens of a sequence that are computed on average."""
    return max(1, round(run.seq_len * run.computed_share))
