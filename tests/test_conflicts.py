"""Which techniques cannot stand together, and which can: the conflict matrix of the guides, and those of their tables."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import H100, T4, case, cost, cpu_device, gpu
from rules import fit, gates, parallel, speed
from rules.outside import NEVER, OUT_OF_SCOPE
from rules.table import NVME, medium, mixture, on, pin, room, technique, tiny

from generator.case.case import Case
from generator.decide.search import find_best
from generator.decide.space import open_space
from generator.errors import UsageError
from generator.techniques.base import list_axes

CHECKLIST = Path(__file__).resolve().parents[1] / "../shared/TECHNIQUES.md"
FULL = on(devices=4, nodes=2, disks=NVME)
LORA, QLORA, SFT = (on(devices=4, **told) for told in ({"train": "lora"}, {"train": "qlora"}, {"task": "sft"}))
SERVED = on(devices=4, mode="infer")
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
OFFLOADS = {
    "optimizer-cpu": ("zero2", "zero3"),
    "all-cpu": ("zero3", "fsdp2"),
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


CLASHES: list[Pair] = [
    # precision and attention
    *grid(FULL, "attention=flash-attention", ids("precision", "fp32", "tf32"), "16 bits"),
    *grid(FULL, "parallelism=context", ids("attention", "eager", "flash-attention"), "SDPA"),
    (FULL, "parallelism=ulysses", "attention=eager", "SDPA"),
    *grid(SFT, "packing=packed", ids("attention", "sdpa", "eager"), "mask"),
    (FULL, "parallelism=context", "packing=group-by-length", "equal parts"),
    # compilation
    *grid(FULL, "compile=default", ids("packing", "padded", "group-by-length"), "changing length"),
    (FULL, "compile=default", "loss=liger", "fuse the same"),
    (FULL, "compile=default", "loss=chunked", "breaks"),
    *grid(FULL, "compile=default", ids("parallelism", *ZERO, "ulysses"), "hooks"),
    *grid(SERVED, "compile=static-decode", ids("quantization", "bnb-nf4", "bnb-int8"), "not compileable"),
    *grid(SERVED, "compile=static-decode", ids("cache", "dynamic", "none"), "fixed shapes"),
    (SERVED, "compile=static-decode", "parallelism=device-map", "graph"),
    (SERVED, "cache=static", "compile=off", "without compilation"),
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
    *grid(FULL, "precision=bf16-pure", ids("parallelism", *ZERO, "ulysses"), "master"),
    *grid(FULL, "parallelism=tensor", ids("optimizer", *OTHER_OPTIMIZERS), "DTensor"),
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
    *[(FULL, f"offload={what}", f"parallelism={form}") for what, able in OFFLOADS.items() for form in able],
    *[(FULL, "offload=none", f"parallelism={form}") for form in FORMS],
    *[(FULL, f"parallelism={form}", f"optimizer={name}") for form in FORMS for name in ("adamw", "adamw-fused")],
    *[(FULL, "parallelism=ddp", f"optimizer={name}") for name in OTHER_OPTIMIZERS],
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
    *[(QLORA, "trained=qlora", f"parallelism={form}") for form in ("single", "ddp")],
    *[(QLORA, "trained=qlora", f"optimizer={name}") for name in ("adamw-fused", "paged-adamw-8bit")],
    *[(FULL, "attention=sdpa", f"parallelism={form}") for form in FORMS],
    (FULL, "parallelism=ulysses", "attention=flash-attention"),
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
        ("attention", "packing"),
        ("attention", "parallelism"),
        ("attention", "precision"),
        ("cache", "compile"),
        ("checkpointing", "parallelism"),
        ("compile", "loss"),
        ("compile", "packing"),
        ("compile", "parallelism"),
        ("compile", "quantization"),
        ("offload", "optimizer"),
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


@pytest.mark.parametrize("pair", CLASHES, ids=named)
def test_these_clash_and_say_why(pair):
    of, a, b, words = pair
    one, two = technique(a), technique(b)
    there, back = room(of).clash(one, two), room(of).clash(two, one)
    assert there and words in there
    assert there == back


@pytest.mark.parametrize("pair", STANDING, ids=named)
def test_these_stand_together(pair):
    of, a, b = pair
    assert room(of).clash(technique(a), technique(b)) is None
    assert room(of).clash(technique(b), technique(a)) is None


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
        why = fresh.clash(a, b)
        if a.axis != b.axis and why is not None:
            assert len(why.split()) >= 4, (a.id, b.id, why)
            assert frozenset((a.axis, b.axis)) in JOINED_AXES, f"{a.id} and {b.id}: {why}"


def test_every_joined_pair_of_axes_has_a_case():
    told = {frozenset((a.split("=")[0], b.split("=")[0])) for _, a, b, _ in CLASHES}
    assert told == JOINED_AXES


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
def test_no_plan_holds_two_techniques_that_clash(of, seed):
    """Each axis narrowed to a few members drawn at random, so that clashing ones meet; the plan that the search takes."""
    random = Random(seed)
    whole = open_space(of, cost(of))
    few = {name: tuple(random.sample(members, min(len(members), 2))) for name, members in whole.open.items()}
    found = find_best(whole.narrowed(few))
    if found:
        assert len({t.axis for t in found.members}) == len(found.members) == len(whole.axes)
        for a, b in combinations(found.members, 2):
            assert a.clash(b, of) is None and b.clash(a, of) is None, (a.id, b.id)
