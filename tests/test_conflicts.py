"""Which techniques cannot stand together, and which can: the conflict matrix of the guides, and those of their tables."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from pathlib import Path
from random import Random
from string import Formatter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import H100, T4, case, cost, cpu_device, gpu
from rules import fit, gates, parallel, speed
from rules.outside import NEVER, OUT_OF_SCOPE
from rules.table import NVME, by_transformers, medium, mixture, on, pin, room, technique, tiny

from generator.case.case import Case
from generator.case.optimizer_states import ADAM
from generator.decide.search import find_best
from generator.decide.space import open_space
from generator.errors import UsageError
from generator.techniques.base import Technique, explain_conflict, find_technique, list_axes, list_providers
from generator.techniques.compile.default import Default
from generator.techniques.optimizers import Optimizer
from generator.techniques.traits import EXCLUDED_BY_TRAIT, NEEDED_BY_TRAIT, Trait

ROOT = Path(__file__).resolve().parents[1]
CHECKLIST = ROOT / "../shared/TECHNIQUES.md"
ALL = [t for axis in list_axes() for t in axis.members]
FULL = on(devices=4, nodes=2, disks=NVME)
LORA, QLORA, SFT = (on(devices=4, **work) for work in ({"train": "lora"}, {"train": "qlora"}, {"task": "sft"}))
DORA = on(devices=4, nodes=2, train="lora", adapter="dora")
SERVED = on(devices=4, mode="infer")
ANSWERED = by_transformers(SERVED)
SERVED_BY_CPU = on(cpu_device(), mode="infer")
ONE = on()

FSDP = ("fsdp2", "fsdp2-no-reshard", "hsdp", "fsdp2-at-load")
ZERO = ("zero1", "zero2", "zero3")
SHARDED_ADAPTERS = (*FSDP[:3], "context", "expert")
OTHER_OPTIMIZERS = (
    "adafactor",
    "adamw-8bit",
    "paged-adamw-8bit",
    "adamw-torchao-4bit",
    "lion-8bit",
    "galore",
    "lomo",
    "sgd",
)
IN_BACKWARD = ("in-backward-paged-adamw-8bit", "lomo", "adalomo")
OFFLOADS = {
    "optimizer-cpu": ("zero2", "zero3"),
    "all-cpu": ("zero3", "fsdp2", "fsdp2-packed"),
    "optimizer-nvme": ("zero3",),
    "all-nvme": ("zero3",),
}
"""by what is offloaded, the forms of parallelism that can"""
FORMS = ("single", "ddp", *ZERO, *FSDP, "tensor", "pipeline", "context", "ulysses")

Pair = tuple[Case, str, str, str]


def grid(of: Case, first: str, lasts: tuple[str, ...], words: str) -> list[Pair]:
    return [(of, first, last, words) for last in lasts]


def ids(axis: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{axis}={name}" for name in names)


CONFLICTS: list[Pair] = [
    # precision and attention
    *grid(FULL, "attention=flash-attention", ids("precision", "fp32", "tf32"), "16 bits"),
    *grid(FULL, "packing=varlen", ids("precision", "fp32", "tf32"), "16 bits"),
    *grid(SFT, "packing=varlen", ids("attention", "eager", "flash-attention"), "scaled_dot_product_attention"),
    *grid(SFT, "packing=flattened", ids("attention", "eager", "flash-attention"), "scaled_dot_product_attention"),
    *grid(SFT, "parallelism=context", ids("packing", "flattened", "varlen"), "see each other"),
    *grid(SFT, "parallelism=ulysses", ids("packing", "flattened", "varlen"), "limits"),
    *grid(FULL, "parallelism=context", ids("attention", "eager", "flash-attention"), "SDPA"),
    *grid(FULL, "parallelism=ulysses", ids("attention", "eager", "flash-attention"), "SDPA"),
    *grid(SFT, "packing=packed", ids("attention", "sdpa", "eager"), "mask"),
    (FULL, "parallelism=context", "packing=group-by-length", "equal parts"),
    # compilation
    *grid(
        FULL, "compile=default", ids("packing", "padded", "group-by-length", "flattened", "varlen"), "changing length"
    ),
    (FULL, "compile=default", "loss=liger", "fuse the same"),
    *grid(FULL, "compile=regional", ids("packing", "flattened", "varlen"), "every number of texts"),
    (FULL, "compile=regional", "loss=liger", "fuse the same"),
    *grid(FULL, "compile=regional", ids("parallelism", *FSDP, "ulysses"), "FSDP gathers"),
    *grid(FULL, "compile=regional", ids("parallelism", *ZERO), "hooks"),
    (QLORA, "compile=regional", "trained=qlora", "must not be compiled"),
    *grid(FULL, "checkpointing=selective", ids("compile", "default", "regional"), "Inductor"),
    (FULL, "checkpointing=selective", "attention=eager", "batched products"),
    (FULL, "checkpointing=selective", "attention=flash-attention", "another library's attention"),
    (FULL, "checkpointing=selective", "loss=liger", "gradients would be wrong"),
    *grid(FULL, "checkpointing=selective", ids("parallelism", *FSDP[:3]), "every layer or none"),
    *grid(FULL, "compile=off", ids("precision", "fp8-tensorwise", "fp8-rowwise"), "scales and casts"),
    (FULL, "compile=default", "loss=chunked", "breaks"),
    *grid(FULL, "compile=default", ids("parallelism", *ZERO), "hooks"),
    *grid(FULL, "compile=default", ids("parallelism", "tensor", "pipeline", "context", "ulysses"), "loop that trains"),
    *grid(FULL, "parallelism=context", ids("loss", "chunked"), "its own count"),
    *grid(FULL, "parallelism=tensor", ids("loss", "liger"), "not run"),
    *grid(SERVED, "compile=static-decode", ids("quantization", "bnb-nf4", "bnb-int8"), "not compileable"),
    *grid(SERVED, "compile=static-decode", ids("cache", "dynamic", "none"), "fixed shapes"),
    (SERVED, "compile=static-decode", "parallelism=device-map", "graph"),
    *grid(
        SERVED,
        "compile=static-decode",
        ids("quantization", "torchao-int8", "torchao-int4"),
        "with compile=static-decode",
    ),
    *grid(SERVED, "compile=off", ids("quantization", "torchao-int8", "torchao-int4"), "with compile=off"),
    *grid(SERVED, "compile=tuned-decode", ids("quantization", "none", "stored"), "such products were"),
    *grid(SERVED, "compile=tuned-decode", ids("quantization", "bnb-nf4", "bnb-int8"), "not compileable"),
    *grid(SERVED, "precision=fp32", ids("quantization", "torchao-int8", "torchao-int4"), "bf16, not fp32"),
    *grid(SERVED, "precision=fp16", ids("quantization", "torchao-int8", "torchao-int4"), "overflow"),
    (SERVED, "compile=tuned-decode", "parallelism=device-map", "graph"),
    *grid(SERVED, "engine=vllm", ids("quantization", "torchao-int8", "torchao-int4"), "its own code"),
    *grid(SERVED, "parallelism=device-map-offload", ids("quantization", "bnb-nf4", "bnb-int8"), "cannot leave"),
    # engines
    *grid(SERVED, "engine=vllm", ids("attention", "sdpa", "eager"), "its own code"),
    *grid(SERVED, "engine=vllm", ids("cache", "static", "dynamic"), "its own code"),
    (SERVED, "engine=sglang", "speculation=prompt-lookup", "checks no proposed"),
    *grid(SERVED, "engine=vllm", ids("quantization", "bnb-nf4", "bnb-int8"), "its own code"),
    *grid(SERVED, "engine=vllm", ids("parallelism", "device-map", "tensor"), "its own code"),
    (SERVED, "engine=vllm", "compile=static-decode", "its own code"),
    (SERVED, "engine=vllm", "precision=fp32", "16 bits"),
    (SERVED, "engine=transformers", "parallelism=served", "does not divide"),
    (SERVED, "engine=transformers", "attention=engine", "no attention kernels"),
    (SERVED, "engine=transformers", "cache=engine", "no cache"),
    (SERVED, "engine=transformers", "quantization=fp8", "8-bit floating point"),
    *grid(SERVED_BY_CPU, "engine=transformers", ids("quantization", "int8", "int4"), "does not pack"),
    (ANSWERED, "cache=static", "compile=off", "without compilation"),
    (QLORA, "compile=default", "trained=qlora", "must not be compiled"),
    *grid(DORA, "adapter=dora", ids("parallelism", *FSDP[:3], "fsdp2-packed", *ZERO), "norm of whole"),
    # sharding
    *grid(QLORA, "trained=qlora", ids("parallelism", *SHARDED_ADAPTERS), "packed 4-bit"),
    *grid(QLORA, "trained=qlora", ids("parallelism", *ZERO, "ulysses"), "4-bit"),
    *[p for form in FSDP for p in grid(FULL, f"parallelism={form}", ids("optimizer", *OTHER_OPTIMIZERS), "DTensor")],
    *[p for form in ZERO for p in grid(FULL, f"parallelism={form}", ids("optimizer", *OTHER_OPTIMIZERS), "tested")],
    *[p for form in FSDP for p in grid(FULL, f"parallelism={form}", ids("precision", "fp16"), "scal")],
    *[
        p
        for form in FSDP[:3]
        for p in grid(FULL, f"parallelism={form}", ids("checkpointing", "every-2", "every-4"), "every")
    ],
    *grid(FULL, "precision=bf16-pure", ids("parallelism", *ZERO), "master"),
    *grid(FULL, "parallelism=tensor", ids("optimizer", *OTHER_OPTIMIZERS), "DTensor"),
    # tiles of a sequence, and inputs on the host
    *[
        p
        for name in ("offloaded", "tiled", "tiled-offloaded")
        for p in (
            (FULL, f"checkpointing={name}", "parallelism=fsdp2", "sharded"),
            (FULL, f"checkpointing={name}", "parallelism=zero3", "DeepSpeed"),
            (FULL, f"checkpointing={name}", "compile=default", "the compiled graph"),
            (FULL, f"checkpointing={name}", "compile=regional", "compiled layers"),
        )
    ],
    # updates in the backward pass
    *grid(FULL, "precision=fp16", ids("optimizer", *IN_BACKWARD), "scaled"),
    *grid(FULL, "compile=default", ids("optimizer", *IN_BACKWARD), "at once"),
    *grid(FULL, "parallelism=ddp", ids("optimizer", *IN_BACKWARD), "exchanged"),
    # offload
    *[
        (FULL, f"offload={what}", f"parallelism={form}", "can offload")
        for what, able in OFFLOADS.items()
        for form in FORMS
        if form not in able and form != "fsdp2-at-load"
    ],
    *[p for what in OFFLOADS for p in grid(FULL, f"offload={what}", ids("optimizer", *OTHER_OPTIMIZERS), "AdamW")],
    *[
        p
        for of in (ONE, on(devices=2, global_batch=1))
        for p in grid(of, "offload=none", ids("parallelism", "zero2", "zero3"), "nothing to divide")
    ],
]

STANDING: list[tuple[Case, str, str]] = [
    *[(FULL, "compile=regional", f"packing={name}") for name in ("padded", "group-by-length")],
    *[(FULL, "compile=regional", f"loss={name}") for name in ("plain", "chunked")],
    *[(FULL, "compile=regional", name) for name in ("checkpointing=full", "parallelism=ddp", "parallelism=single")],
    *[
        (FULL, f"compile={name}", f"precision=fp8-{scales}wise")
        for name in ("default", "regional")
        for scales in ("tensor", "row")
    ],
    (LORA, "compile=regional", "trained=lora"),
    *[(FULL, f"offload={what}", f"parallelism={form}") for what, able in OFFLOADS.items() for form in able],
    *[(FULL, "offload=none", f"parallelism={form}") for form in FORMS],
    *[(FULL, f"parallelism={form}", f"optimizer={name}") for form in FORMS for name in ("adamw", "adamw-fused")],
    *[(FULL, "parallelism=ddp", f"optimizer={name}") for name in OTHER_OPTIMIZERS if name not in IN_BACKWARD],
    *[
        (FULL, f"parallelism={form}", f"precision={name}")
        for form in FSDP
        for name in ("bf16", "fp32", "tf32", "bf16-pure")
    ],
    *[(FULL, f"parallelism={form}", f"precision={name}") for form in ZERO for name in ("bf16", "fp16", "fp32")],
    *[(FULL, f"parallelism={form}", f"checkpointing={name}") for form in FORMS for name in ("off", "full")],
    *[
        (FULL, f"parallelism={form}", f"checkpointing={name}")
        for form in (*ZERO, "ddp")
        for name in ("every-2", "every-4")
    ],
    *[(LORA, "trained=lora", f"parallelism={form}") for form in ("ddp", "fsdp2", "zero2", "zero3", "tensor")],
    *[(QLORA, "trained=qlora", f"parallelism={form}") for form in ("single", "ddp", "fsdp2-packed")],
    *[(QLORA, "trained=qlora", f"optimizer={name}") for name in ("adamw-fused", "paged-adamw-8bit")],
    *[(FULL, "attention=sdpa", f"parallelism={form}") for form in FORMS],
    (FULL, "attention=flash-attention", "precision=bf16"),
    (FULL, "compile=default", "packing=packed"),
    (FULL, "compile=default", "parallelism=ddp"),
    (FULL, "loss=liger", "parallelism=fsdp2"),
    (SFT, "packing=packed", "attention=flash-attention"),
    (FULL, "packing=packed", "attention=sdpa"),
    (SERVED, "compile=static-decode", "cache=static"),
    (SERVED, "compile=static-decode", "quantization=none"),
    (SERVED, "parallelism=tensor", "precision=fp16"),
    (SERVED, "cache=dynamic", "compile=off"),
    (SERVED, "cache=static", "compile=off"),
]

EXCLUSIVE = (
    ("parallelism=fsdp2", "parallelism=zero3", FULL),
    ("parallelism=device-map", "parallelism=tensor", SERVED),
    ("parallelism=tensor", "parallelism=ddp", FULL),
    ("parallelism=pipeline", "parallelism=fsdp2", FULL),
    ("parallelism=context", "parallelism=ulysses", FULL),
    ("precision=fp16", "precision=bf16", FULL),
)
"""Members of one axis: a plan has one of them."""

JOINED_AXES = {
    frozenset(pair)
    for pair in (
        ("adapter", "parallelism"),
        ("attention", "checkpointing"),
        ("attention", "packing"),
        ("attention", "parallelism"),
        ("attention", "precision"),
        ("cache", "compile"),
        ("cache", "engine"),
        ("attention", "engine"),
        ("compile", "engine"),
        ("engine", "parallelism"),
        ("engine", "speculation"),
        ("loss", "parallelism"),
        ("parallelism", "quantization"),
        ("engine", "precision"),
        ("engine", "quantization"),
        ("checkpointing", "compile"),
        ("checkpointing", "loss"),
        ("checkpointing", "parallelism"),
        ("compile", "loss"),
        ("compile", "optimizer"),
        ("compile", "packing"),
        ("compile", "parallelism"),
        ("compile", "precision"),
        ("compile", "quantization"),
        ("compile", "trained"),
        ("packing", "precision"),
        ("precision", "quantization"),
        ("offload", "optimizer"),
        ("optimizer", "precision"),
        ("offload", "parallelism"),
        ("optimizer", "parallelism"),
        ("packing", "parallelism"),
        ("parallelism", "precision"),
        ("parallelism", "trained"),
    )
}
"""Axes between which there is a conflict at all. Threads, data workers and the like stand beside anything."""

MATRIX = {
    "FSDP×DeepSpeed": "R008",
    "FSDP×optimizer object": "R017",
    "FSDP.ac×Trainer.ac": "R006",
    "ZeRO-3×auto_find_batch_size": "R009",
    "ZeRO-3×device_map": "R013",
    "TP×device_map": "R013",
    "TP×DDP-replicate": "R030",
    "PP×FSDP": "R026",
    "CP×SP": "R029",
    "CP×non-SDPA": "R031",
    "quantized×multi-device DP": "R016",
    "quantized×compile×train": "R015",
    "layerwise×GA/DDP": "R020",
    "fp16×bf16": "R001",
    "tf32×non-Ampere": "R004",
    "FA×fp32/CPU": "R037",
    "CB×--compile": "R611",
    "assisted×batch": "R036",
    "offloaded cache×CPU": "R040",
    "XLA×fused AdamW": "R021",
    "torchao-fp8×FSDP2 ram-efficient": "R043",
    "prefetch×0 workers": "R019",
    "save_only_model×{best, sharded}": "R010",
    "DistributedConfig×resume": "R012",
    "DS debug: `debug=underflow_overflow`×DP": "R801",
}
"""The checklist's matrix, and the rule whose cases (``tests/rules``) or pairs (here) show each entry."""


def named(pair) -> str:
    return f"{pair[1]}-{pair[2]}-{pair[0].workload.train if pair[0].workload.mode == 'train' else 'infer'}"


@pytest.mark.parametrize("pair", CONFLICTS, ids=named)
def test_these_conflict_and_say_why(pair):
    of, a, b, words = pair
    one, two = technique(a), technique(b)
    there, back = room(of).conflict(one, two), room(of).conflict(two, one)
    assert there and words in there
    assert there == back


@pytest.mark.parametrize("pair", STANDING, ids=named)
def test_these_stand_together(pair):
    of, a, b = pair
    assert room(of).conflict(technique(a), technique(b)) is None
    assert room(of).conflict(technique(b), technique(a)) is None


@pytest.mark.parametrize(("a", "b", "of"), EXCLUSIVE, ids=lambda x: x if isinstance(x, str) else "")
def test_members_of_one_axis_exclude_each_other(a, b, of):
    for pair in ((a, b), (b, a)):
        with pytest.raises(UsageError, match="contradict"):
            open_space(pin(of, *pair), cost(of))


@pytest.mark.parametrize("of", [FULL, LORA, QLORA, SFT, SERVED, ONE, on(cpu_device())])
def test_conflicts_are_between_the_axes_that_are_known_to_touch(of):
    """Every pair of techniques there is: symmetric, with a reason, and between axes of which it is expected."""
    members = [t for axis in list_axes() for t in axis.for_mode(of.workload.mode)]
    fresh = open_space(of, cost(of))
    for a, b in combinations(members, 2):
        why = fresh.conflict(a, b)
        if a.axis != b.axis and why is not None:
            assert len(why.split()) >= 4, (a.id, b.id, why)
            assert frozenset((a.axis, b.axis)) in JOINED_AXES, f"{a.id} and {b.id}: {why}"


def test_every_joined_pair_of_axes_has_a_case():
    shown = {frozenset((a.split("=")[0], b.split("=")[0])) for _, a, b, _ in CONFLICTS}
    assert shown == JOINED_AXES


def test_the_matrix_of_the_checklist_is_covered():
    shown = {rule.id for table in (gates, fit, parallel, speed) for rule in table.RULES} | {*NEVER, *OUT_OF_SCOPE}
    assert set(MATRIX.values()) <= shown
    if not CHECKLIST.is_file():
        pytest.skip("the checklist of the guides is not beside this repository")
    (line,) = re.findall(r"^\*\*Conflict matrix.*?:? (FSDP×.*)\.$", CHECKLIST.read_text(encoding="utf-8"), re.MULTILINE)
    entries = [re.sub(r" \(R[\d/R]+\)$", "", entry.strip()) for entry in line.split(" · ")]
    assert entries == list(MATRIX)


DEVICES = (H100, T4, gpu("8.9", 24, 165, 1.0e12, "RTX 4090"), cpu_device(16, 64, bf16=True))
MODELS = (tiny(), medium(), mixture(8, hidden=1024, layers=4, ffn=3584))

cases = st.builds(
    lambda device, model, mode, task, train, seq_len, batch, places, host, disks: case(
        device,
        model,
        mode=mode,
        task=task,
        train=train,
        seq_len=seq_len,
        global_batch=batch,
        devices=1 if device.kind == "cpu" else places[0],
        nodes=1 if device.kind == "cpu" else places[1],
        host_gib=host,
        disks=disks,
        features=("avx2", "avx512f", "avx512_bf16"),
    ),
    st.sampled_from(DEVICES),
    st.sampled_from(MODELS),
    st.sampled_from(["train", "train", "train", "infer"]),
    st.sampled_from(["causal-lm", "sft", "text-classification"]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from([128, 2048]),
    st.sampled_from([1, 8, 24]),
    st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 2)]),
    st.sampled_from([16, 256]),
    st.sampled_from([(), NVME]),
)


@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases, st.integers(0, 2**32))
def test_no_plan_holds_two_techniques_that_conflict(of, seed):
    """Each axis narrowed to a few members drawn at random, so that conflicting ones meet; the plan that the search takes."""
    random = Random(seed)
    space = open_space(of, cost(of))
    few = {name: tuple(random.sample(members, min(len(members), 2))) for name, members in space.open.items()}
    best = find_best(space.narrowed(few))
    if best:
        assert len({t.axis for t in best.members}) == len(best.members) == len(space.axes)
        for a, b in combinations(best.members, 2):
            assert explain_conflict(a, b, of) is None, (a.id, b.id)


# ---- conflicts are declared: what is written, and what follows for whoever comes next

CASES = (FULL, LORA, QLORA, SFT, SERVED, ONE)
TECHNIQUES = ROOT / "generator" / "techniques"


def list_reasons() -> list[str]:
    tables = [EXCLUDED_BY_TRAIT.values(), NEEDED_BY_TRAIT.values()]
    tables.append([reasons for t in ALL for reasons in (t.excludes, t.needs)])
    return [why for table in tables for reasons in table for why in reasons.values()]


def list_refused(one: Technique, of: Case) -> dict[str, str]:
    """By id what ``one`` cannot stand beside, and why."""
    others = [t for axis in list_axes() for t in axis.for_mode(of.workload.mode) if t.axis != one.axis]
    return {t.id: why for t in others if (why := explain_conflict(one, t, of))}


@pytest.mark.parametrize("trait", Trait, ids=lambda trait: trait.name)
def test_every_trait_is_brought_and_matters(trait):
    refused = {t for reasons in EXCLUDED_BY_TRAIT.values() for t in reasons} | {x for t in ALL for x in t.excludes}
    needed = {t for reasons in NEEDED_BY_TRAIT.values() for t in reasons} | {x for t in ALL for x in t.needs}
    assert list_providers()[trait], "no technique provides it"
    assert trait in refused | needed | EXCLUDED_BY_TRAIT.keys() | NEEDED_BY_TRAIT.keys(), "nothing follows from it"
    if trait in needed:
        assert len({t.axis for t in list_providers()[trait]}) == 1, "whoever needs it must know which axis to ask"
    assert len(trait.value.split()) > 3


def test_what_a_technique_brings_in_a_case_is_declared():
    for of in CASES:
        assert all(t.traits(of) <= t.provides for t in ALL)


def test_every_technique_that_a_text_names_exists():
    texts = list_reasons() + [text for t in ALL for text in (t.__doc__, t.quality_note, t.request_only)]
    axes = {axis.name for axis in list_axes()}
    named = {pair for text in texts for pair in re.findall(r"([a-z][a-z-]+)=([a-z0-9-]+)", text) if pair[0] in axes}
    assert ("precision", "bf16") in named
    assert not [pair for pair in named if find_technique(*pair) is None]


def test_reasons_have_places_for_the_others_name_only():
    for why in list_reasons():
        assert {field for _, field, _, _ in Formatter().parse(why) if field} <= {"other", "able"}, why


def test_a_typo_is_an_error_at_import():
    with pytest.raises(TypeError, match="compiled-graph"):
        type(
            "Misspelt", (Technique,), {"axis": "compile", "name": "misspelt", "provides": frozenset({"compiled-graph"})}
        )
    with pytest.raises(TypeError, match="zero3"):
        type("Misspelt", (Technique,), {"axis": "compile", "name": "misspelt", "excludes": {"zero3": "no"}})
    with pytest.raises(ModuleNotFoundError, match="compiling"):
        type("Misspelt", (Technique,), {"axis": "compiling", "name": "misspelt"})
    with pytest.raises(AttributeError):
        _ = Trait.COMPILD_GRAPH


class Subclass(Default):
    """A compiled form that is written as a subclass."""

    name = "max-autotune"


class Sibling(Technique):
    """A compiled form that stands beside the others on its axis, and says nothing of conflicts."""

    axis = "compile"
    name = "max-autotune"


@pytest.mark.parametrize("kind", [Subclass, Sibling])
@pytest.mark.parametrize("of", CASES[:4], ids=["full", "lora", "qlora", "sft"])
def test_a_new_form_of_compilation_refuses_what_the_present_one_refuses(kind, of):
    refused = list_refused(kind(), of)
    assert refused == list_refused(technique("compile=default"), of)
    assert {
        "parallelism=zero3",
        "parallelism=ulysses",
        "loss=liger",
        "packing=padded",
        "trained=qlora",
    } <= refused.keys()
    assert ("loss=chunked" in refused) == (of.workload.task == "causal-lm")


class Fsdp3(Technique):
    """A form of sharding that is no subclass of the present ones."""

    axis = "parallelism"
    name = "fsdp3"
    provides = frozenset({Trait.DTENSOR, Trait.FSDP_RECOMPUTATION})

    def layouts(self, case):
        return technique("parallelism=fsdp2-no-reshard").layouts(case)


@pytest.mark.parametrize("of", CASES[:4], ids=["full", "lora", "qlora", "sft"])
def test_a_new_form_of_sharding_refuses_what_the_present_ones_refuse(of):
    assert list_refused(Fsdp3(), of) == list_refused(technique("parallelism=fsdp2-no-reshard"), of)


class Shampoo(Optimizer):
    """An optimizer that nobody has tried on sharded tensors."""

    name = "shampoo"
    optim = "shampoo"
    state = ADAM


@pytest.mark.parametrize("form", [*FSDP, *ZERO, "tensor", "context", "ulysses"])
def test_a_new_optimizer_stays_off_what_was_not_tried_with_it(form):
    assert explain_conflict(Shampoo(), technique(f"parallelism={form}"), FULL)
    assert explain_conflict(Shampoo(), technique("parallelism=ddp"), FULL) is None


def test_a_subclass_adds_to_its_parents_traits():
    class Both(Fsdp3):
        provides = frozenset({Trait.LOSS_SCALING})
        excludes: ClassVar = {Trait.SDPA: "no"}

    assert Both.provides == Fsdp3.provides | {Trait.LOSS_SCALING}
    assert Both.excludes == {Trait.SDPA: "no"} and not Fsdp3.excludes


def test_no_technique_compares_anothers_name():
    """Names, ids and axes of techniques are declared data: no file compares one with a text that it holds."""
    paths = sorted(TECHNIQUES.rglob("*.py"))
    assert len(paths) > 80
    compared = [
        f"{path.relative_to(ROOT)}:{node.lineno}" for path in paths for node in list_name_comparisons(path.read_text())
    ]
    assert not compared


@pytest.mark.parametrize(
    "line",
    [
        'other.name == "zero3"',
        'other.id in ("parallelism=zero2", "parallelism=zero3")',
        'other.name not in NAMES and other.axis != "optimizer"',
        'other.name.startswith("bnb")',
        '"zero" in other.name',
    ],
)
def test_a_comparison_with_anothers_name_is_seen(line):
    assert list_name_comparisons(f'NAMES = ("adamw",)\n{line}')


def list_name_comparisons(source: str) -> list[ast.expr]:
    tree = ast.parse(source)
    texts = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and holds_text(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    compared = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_name_of_technique, sides)) and any(holds_text(side, texts) for side in sides):
                compared.append(node)
        elif isinstance(node, ast.Call) and is_text_method(node.func):
            compared.append(node)
    return compared


def is_text_method(node: ast.expr) -> bool:
    """``other.name.startswith``."""
    methods = ("startswith", "endswith", "split", "removeprefix", "removesuffix")
    return isinstance(node, ast.Attribute) and node.attr in methods and is_name_of_technique(node.value)


def is_name_of_technique(node: ast.expr) -> bool:
    """``other.name``, but not ``case.device.name``."""
    return isinstance(node, ast.Attribute) and node.attr in ("name", "id", "axis") and isinstance(node.value, ast.Name)


def holds_text(node: ast.expr, texts: set[str]) -> bool:
    return any(
        (isinstance(n, ast.Constant) and isinstance(n.value, str)) or (isinstance(n, ast.Name) and n.id in texts)
        for n in ast.walk(node)
    )


@pytest.mark.parametrize(
    "form", ["tensor", "tensor-fsdp2", "expert", "context", "ulysses", "pipeline", "pipeline-fsdp2"]
)
def test_the_reason_against_other_attention_is_of_the_form(form):
    """Forms without stages were refused for those of a pipeline."""
    why = explain_conflict(find_technique("attention", "eager"), find_technique("parallelism", form), FULL)
    assert why and ("stages" in why) == form.startswith("pipeline")
