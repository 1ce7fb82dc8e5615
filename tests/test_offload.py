"""What offloading sets around the run, and what a plan says of FSDP2's reduction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from making import H100, SMALL, case, llama

from generator.case.layout import Layout
from generator.cost.execution import Execution
from generator.decide.notes import note_reduction
from generator.techniques.base import find_technique

LAYOUTS = {
    "zero2": Layout(strategy="zero2", per_node=4, shard=4),
    "zero3": Layout(strategy="zero3", nodes=2, per_node=4, shard=8),
    "fsdp2": Layout(strategy="fsdp_full_shard", per_node=4, shard=4),
}


def set_variables(layout: Layout, **known) -> dict[str, str]:
    of = case(H100, llama(**SMALL), train="full", devices=4)
    of = replace(of, layout=layout, hardware=replace(of.hardware, cpu=replace(of.hardware.cpu, **known)))
    technique = find_technique("offload", "all-cpu")
    assert technique
    return dict(technique.edits(of).environment)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_process_has_its_share_of_the_physical_cores(layout: str):
    assert set_variables(LAYOUTS[layout], cores=64, budget=128)["OMP_NUM_THREADS"] == "16"
    assert set_variables(LAYOUTS[layout], cores=64, budget=32)["OMP_NUM_THREADS"] == "8"
    assert set_variables(LAYOUTS[layout], cores=2, budget=2)["OMP_NUM_THREADS"] == "1"


def test_cores_that_are_not_known_are_not_guessed():
    assert "OMP_NUM_THREADS" not in set_variables(LAYOUTS["zero2"], cores=None, budget=None)


def test_pytorch_takes_the_allocator_settings():
    """Page-locked blocks above 64 MB are as large as asked: its allocator reads both names."""
    torch = pytest.importorskip("torch")
    settings = set_variables(LAYOUTS["zero2"])["PYTORCH_ALLOC_CONF"]
    text = (Path(torch.__path__[0]) / "include/ATen/core/CachingHostAllocator.h").read_text(encoding="utf-8")
    for setting in settings.split(","):
        name, megabytes = setting.split(":")
        assert int(megabytes) > 0
        assert f"{name.removesuffix('_mb')}()" in text


@pytest.mark.parametrize(
    ("strategy", "autocast", "at_load", "says"),
    [
        ("fsdp_full_shard", "bfloat16", False, True),
        ("fsdp_full_shard", None, False, False),
        ("fsdp_full_shard", "bfloat16", True, False),
        ("zero3", "bfloat16", False, False),
    ],
)
def test_fsdp2_reduces_in_the_dtype_of_the_arithmetic(strategy: str, autocast: str | None, at_load: bool, says: bool):
    run = Execution(strategy=strategy, dp=4, autocast_dtype=autocast)
    notes = note_reduction(SimpleNamespace(execution=run, layout=Layout(strategy=strategy, at_load=at_load)))  # ty: ignore
    assert [n.kind for n in notes] == (["precision"] if says else [])
    assert not says or "bfloat16" in notes[0].text
