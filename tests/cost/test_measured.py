"""Rates that were timed on the machine replace those of the data sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from making import H100, case, cost, llama

from generator.cost import constants as c
from generator.cost.execution import Execution
from hwdetect.types import Measurement

RUN = Execution(autocast_dtype="bfloat16", strategy="ddp", dp=4, micro_batch=4, seq_len=2048)


def model(*measured, devices=4):
    of = case(H100, llama(hidden=2048, layers=16, heads=16), devices=devices)
    timed_case = replace(of, hardware=replace(of.hardware, measured=measured), accelerators=tuple(range(devices)))
    return cost(timed_case)


def timed(what, value, where="accelerator 0", dtype=None):
    return Measurement(what=what, where=where, value=value, unit="1/s", dtype=dtype)


def test_nothing_measured_changes_nothing():
    assert model().rates == model(timed("matmul", 1e15, "cpu", "bf16"), timed("disk_read", 1e9, "work")).rates


def test_a_timed_product_is_what_is_reached_and_the_slowest_device_counts():
    slowest = model(timed("matmul", 600e12, dtype="bf16"), timed("matmul", 500e12, "accelerator 1", "bf16"))
    assert slowest.rates.products["bf16"] == pytest.approx(500e12 * c.GEMM_REALISED)


def test_another_accelerator_does_not_count():
    assert model(timed("matmul", 1e12, "accelerator 7", "bf16")).rates == model().rates


def test_slow_links_make_the_step_slower_and_the_basis_is_measured():
    everything = (timed("matmul", 700e12, dtype="bf16"), timed("device_memory_bandwidth", 2.9e12))
    fast = model(*everything, timed("all_reduce", 300e9, "4 accelerators"))
    slow = model(*everything, timed("all_reduce", 5e9, "4 accelerators"))
    assert slow.rates.link(4) * c.COLLECTIVE_REALISED == pytest.approx(5e9)
    assert slow.step_seconds(RUN) > 2 * fast.step_seconds(RUN)
    assert slow.rates.basis == "measured"
