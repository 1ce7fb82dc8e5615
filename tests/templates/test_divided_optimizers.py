"""Optimizers of weights that are divided over processes, in the emitted divided_states.py."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from leaves import load_leaf
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "store"), 1))
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_adafactor_takes_no_divided_weights(mesh, monkeypatch):
    """It keeps rows and columns as plain tensors: "got mixed torch.Tensor and DTensor" in the first step."""
    monkeypatch.setitem(sys.modules, "parallel", SimpleNamespace(gloo_group=None))
    states = load_leaf("divided_states")
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))
    with pytest.raises(SystemExit, match="--optim adafactor takes whole weights"):
        states.create_optimizer(model, SimpleNamespace(optim="adafactor"))
