"""The leaf that packs weights in 4 bits where FSDP divides them: each process writes the share that it will be given, and no more."""

import os
import struct
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
bitsandbytes = pytest.importorskip("bitsandbytes")

from bitsandbytes.nn import Params4bit  # noqa: E402

SETTINGS = {"quant_type": "nf4", "compress_statistics": True, "quant_storage": torch.bfloat16}


@pytest.fixture
def packs(load, monkeypatch):
    """Packs ``values`` as a process would; ``_quantize`` is put back after the test."""
    leaf, plain = load("packed_on_gpu"), Params4bit._quantize

    def pack(values, process: int, processes: int) -> Params4bit:
        monkeypatch.setattr(Params4bit, "_quantize", plain)
        leaf.pack_on(torch.device("cpu"), process, processes)
        return Params4bit(values, requires_grad=False, **SETTINGS).to("cpu")

    yield pack
    monkeypatch.setattr(Params4bit, "_quantize", plain)


@pytest.mark.parametrize("rows", [96, 99, 2])
def test_each_process_has_what_fsdp_takes_of_it(packs, rows):
    """All shares together are the packed weight, also where they are not equal; scales are whole in each."""
    values = torch.randn(rows, 64)
    whole = Params4bit(values, requires_grad=False, **SETTINGS).to("cpu")
    parts = []
    for process in range(4):
        packed = packs(values, process, 4)
        assert packed.data.shape == whole.data.shape and packed.data.dtype == torch.bfloat16
        assert torch.equal(packed.quant_state.absmax, whole.quant_state.absmax)
        chunks = packed.data.chunk(4)
        parts += [chunks[process]] if process < len(chunks) else []
    assert torch.equal(torch.cat([part.view(torch.int16) for part in parts]), whole.data.view(torch.int16))


def test_the_other_shares_take_no_memory(packs):
    """Of a packed weight of 64 MiB one of eight processes writes an eighth; huge pages at its ends, that is all."""
    packed = packs(torch.randn(2048, 65536, dtype=torch.bfloat16), 3, 8)
    assert packed.data.nbytes == 64 << 20
    assert 8 << 20 <= count_present_bytes(packed.data) <= (8 << 20) + 2 * (2 << 20)


def count_present_bytes(tensor) -> int:
    """Of the pages that hold it those that are in memory (proc_pid_pagemap(5): bit 63)."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = tensor.data_ptr() // page, (tensor.data_ptr() + tensor.nbytes - 1) // page
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(8 * first)
        entries = struct.unpack(f"={last + 1 - first}Q", pages.read(8 * (last + 1 - first)))
    return page * sum(entry >> 63 for entry in entries)
