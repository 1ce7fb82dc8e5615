"""Attention over gathered keys and values, in one process; of several it is compared in tests/test_loop_projects.py."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

HEADS, KEY_HEADS, TOKENS, WIDTH = 8, 2, 16, 4


@pytest.fixture
def attend(load, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield load("sequence_attention/context").SequenceAttention(dist.group.WORLD, 0, 1)
    dist.destroy_process_group()


def test_keys_of_several_query_heads_are_kept_once(attend):
    """Of long sequences they are what a layer keeps most of: gathered they are of all tokens, and were repeated for every query head."""
    make = torch.manual_seed(0)
    query = torch.randn(1, HEADS, TOKENS, WIDTH, generator=make, requires_grad=True)
    key, value = (torch.randn(1, KEY_HEADS, TOKENS, WIDTH, generator=make, requires_grad=True) for _ in range(2))
    shapes = []

    def note(tensor):
        shapes.append(tuple(tensor.shape))
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        output, _ = attend(None, query, key, value, None)
    own = {(1, HEADS, TOKENS // 2, WIDTH)}  # queries of a piece, and what comes of them
    assert {shape[1] for shape in shapes if len(shape) == 4 and shape not in own} == {KEY_HEADS}
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(output, expected.transpose(1, 2))
