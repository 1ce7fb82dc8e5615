"""The leaf that packs weights in 4 bits where FSDP divides them: each process writes the share that it will be given, and no more."""

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
    """Resident bytes of a packed weight of 64 MiB in one of eight processes."""
    values = torch.randn(2048, 65536, dtype=torch.bfloat16)
    packs(values[:64], 0, 8)  # what the library allocates once
    before = count_resident_bytes()
    packed = packs(values, 3, 8)
    assert packed.data.nbytes == 64 << 20
    scales = 2048 * 65536 // 64
    assert count_resident_bytes() - before < 8 * 2**20 + scales + 12 * 2**20


def count_resident_bytes() -> int:
    """Anonymous memory of this process (proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10
