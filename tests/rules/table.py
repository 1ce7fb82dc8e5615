"""What a row of the table is, and the ways of looking at a case that the rows share. A look says whether the rule is applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from making import H100, case, cost, cpu_device, gpu, llama

from generator.case.case import Case
from generator.case.layout import Layout
from generator.decide.plan import Plan, decide
from generator.decide.search import find_best
from generator.decide.space import Space, open_space
from generator.errors import PerfgenError, UsageError
from generator.model import ModelSpec, describe
from generator.techniques.base import find_technique
from hwdetect.types import Device, Disk, Link

Look = Callable[[Case], bool]
Cases = Case | tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``look`` is true in every case of ``takes`` and false in every one of ``leaves``."""

    id: str
    words: str
    look: Look
    takes: Cases
    leaves: Cases

    def cases(self, side: str) -> tuple[Case, ...]:
        told = self.takes if side == "takes" else self.leaves
        return told if isinstance(told, tuple) else (told,)


# ---- machines, disks and models

PLAIN = ("avx2", "avx512f", "avx512_vnni")
WITH_BF16 = ("avx512f", "avx512_bf16")
WITH_AMX = ("avx512f", "amx_bf16", "amx_tile")
PLAIN_CPU, BF16_CPU = cpu_device(16, 64), cpu_device(16, 64, bf16=True)
BIG_GPU = gpu("9.0", 640, 989, 3.35e12, "a very large GPU")
PASCAL = gpu("6.1", 24, 12, 0.35e12, "Tesla P40")
RTX_4090 = gpu("8.9", 24, 165, 1.0e12, "RTX 4090")
NVME = (Disk(role="work", path="/scratch", kind="nvme"),)


def tiny(**more) -> ModelSpec:
    """60M parameters: fits anywhere."""
    return llama(**{"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 8, "ffn": 1408, "vocab": 32000} | more)


def medium(**more) -> ModelSpec:
    """1.5B parameters."""
    return llama(**{"hidden": 2048, "layers": 24, "heads": 16, "kv_heads": 8, "ffn": 8192, "vocab": 50304} | more)


def mixture(experts: int = 8, hidden: int = 4096, layers: int = 32, ffn: int = 14336) -> ModelSpec:
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }
    return describe(config, "test/mixture")


def encoder() -> ModelSpec:
    config = {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    }
    return describe(config, "test/encoder")


def joined(of: Case, kind: str = "nvlink", network: float | None = None) -> Case:
    """``of`` with every pair of a node's devices linked: ``nvlink`` (300 GB/s a device), or a PCIe path without peer access.

    ``network`` is a node's bytes per second to the others.
    """
    count = of.devices_per_node
    rate = 300e9 / max(count - 1, 1) if kind == "nvlink" else None
    pairs = [(a, b) for b in range(count) for a in range(b)]
    links = tuple(Link(a=a, b=b, kind=kind, bandwidth_bytes_per_s=rate, p2p=kind == "nvlink") for a, b in pairs)
    return replace(of, links=links, network_bytes_per_s=network)


def driven(of: Case, driver: str) -> Case:
    software = replace(of.hardware.software, driver=driver)
    return replace(of, hardware=replace(of.hardware, software=software))


def pin(of: Case, *ids: str) -> Case:
    pins = tuple(tuple(x.split("=", 1)) for x in ids)
    return replace(of, workload=replace(of.workload, pins=(*of.workload.pins, *pins)))


def by_transformers(of: Case) -> Case:
    """Served by Transformers itself, as infer.py of a training project is."""
    return pin(replace(of, workload=replace(of.workload, after_training=True)), "engine=transformers")


# ---- what is looked at


@cache
def plan(of: Case) -> Plan:
    return decide(of, cost(of))


@cache
def room(of: Case) -> Space:
    return open_space(of, cost(of))


def chosen(axis: str, *names: str) -> Look:
    return lambda of: plan(of).best.choice[axis] in names


def refused(technique_id: str, *words: str) -> Look:
    """There is an obstacle that says ``words``; the plan records it, and pinning the technique is an error that says the same."""

    def look(of: Case) -> bool:
        why = room(of).obstacles.get(technique_id)
        if why is None:
            return False
        try:
            open_space(pin(of, technique_id), cost(of))
        except UsageError as error:
            assert why in str(error)
        else:  # what is only on request
            return False
        return all(word in why for word in words)

    return look


def error(*words: str) -> Look:
    """The whole case is refused, with ``words``."""

    def look(of: Case) -> bool:
        try:
            plan(of)
        except PerfgenError as refusal:
            assert all(word in str(refusal) for word in words), str(refusal)
            return True
        return False

    return look


def conflicting(a: str, b: str, *words: str) -> Look:
    def look(of: Case) -> bool:
        why = room(of).conflict(technique(a), technique(b))
        return why is not None and all(word in why for word in words)

    return look


def technique(technique_id: str):
    found = find_technique(*technique_id.split("=", 1))
    assert found, f"there is no {technique_id}"
    return found


def emits(name: str, *values: str, place: str = "training_arguments") -> Look:
    """The plan's script has the argument ``name``, with one of ``values`` where they are given."""

    def look(of: Case) -> bool:
        code = written(of, place).get(name)
        return code is not None and (not values or code in values)

    return look


def written(of: Case, place: str = "training_arguments") -> dict[str, str]:
    """Arguments by name; of the configuration files, their dotted keys."""
    found = getattr(plan(of).edits, place)
    return {a.name: a.code for a in found} if place.endswith("arguments") else dict(found)


def layouts(of: Case, name: str) -> tuple[Layout, ...]:
    """The ways of dividing the devices under a form of parallelism; none where it cannot be used."""
    return room(of).layouts.get(f"parallelism={name}", ())


def laid_out(name: str, **fields: int) -> Look:
    """Some layout of that form has these fields."""
    return lambda of: any(all(getattr(x, f) == v for f, v in fields.items()) for x in layouts(of, name))


@cache
def seconds(of: Case, form: str) -> float:
    """A step of the best plan under one form of parallelism, emitted or only planned; infinite where nothing fits without a
    risk to convergence."""
    members = [t for t in room(of).open["parallelism"] if t.name == form]
    best = find_best(room(of).narrowed({"parallelism": tuple(members)})) if members else None
    return best.estimate.step_seconds if best and best.risk == 0 else float("inf")


def first(names: tuple[str, ...], *forms: str) -> Look:
    """The fastest of ``forms`` is one of ``names``."""

    def look(of: Case) -> bool:
        best = min(forms, key=lambda form: seconds(of, form))
        return seconds(of, best) < float("inf") and best in names

    return look


def costed(axis: str, name: str) -> Look:
    """The plan shows what the alternative would cost."""
    return lambda of: any(
        r.name == name and r.cost is not None for d in plan(of).decisions if d.axis == axis for r in d.rejected
    )


def fastest_of(axis: str) -> Look:
    """No alternative on the axis, all else equal, takes less time."""

    def look(of: Case) -> bool:
        told = [r.cost.step_seconds for d in plan(of).decisions if d.axis == axis for r in d.rejected if r.cost]
        return plan(of).best.estimate.step_seconds < min(told, default=0.0)

    return look


def both(*looks: Look) -> Look:
    return lambda of: all(look(of) for look in looks)


def without(look: Look) -> Look:
    return lambda of: not look(of)


def on(device: Device = H100, model: ModelSpec | None = None, **told) -> Case:
    """``making.case`` of a small model."""
    return case(device, model or tiny(), **told)
