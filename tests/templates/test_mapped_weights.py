"""A whole model in files: what the first process writes may be larger than its memory."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from leaves import load_leaf

pytest.importorskip("torch")


def test_a_disk_without_room_is_an_error_and_no_bus_error(tmp_path, monkeypatch):
    import torch

    monkeypatch.setitem(sys.modules, "parallel", SimpleNamespace(gloo_group=None))
    states = load_leaf("divided_states")
    size = shutil.disk_usage(tmp_path).free // 4 + (1 << 30)  # elements of four bytes: nothing of it is written
    with pytest.raises(OSError, match="No space left") as full, states.InFiles(tmp_path):
        torch.empty(size)
    assert full.value.errno == errno.ENOSPC and not list(tmp_path.iterdir())


def test_weights_in_files_are_those_in_memory_and_leave_none(tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    monkeypatch.setitem(sys.modules, "parallel", SimpleNamespace(gloo_group=None))
    states = load_leaf("divided_states")
    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "vocab_size": 512}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(0)
    expected = AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict()
    torch.manual_seed(0)
    with states.InFiles(tmp_path):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert not list(tmp_path.iterdir())
    mapped = Path("/proc/self/maps").read_text()
    matrices = [name for name, weight in expected.items() if weight.dim() > 1]
    assert mapped.count(str(tmp_path)) >= len(matrices) == 16  # as many files, without a name; norms are made of ones
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    with torch.device("meta"):
        whole = type(model)(config)
    with states.InFiles(tmp_path):
        whole.to_empty(device="cpu")
    whole.load_state_dict(expected)
    assert all(torch.equal(weight, expected[name]) for name, weight in whole.state_dict().items())
