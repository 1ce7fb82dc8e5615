"""The loss of divided logits, where one process has all of them; of several it is compared in tests/test_loop_projects.py."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

TOKENS, WORDS = 12, 33


@pytest.fixture
def parts(load, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield load("vocabulary_parts").VocabularyParts(init_device_mesh("cpu", (1,)), WORDS)
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_loss_of_transformers(parts, dtype):
    logits = torch.randn(1, TOKENS, WORDS, generator=torch.manual_seed(0)).to(dtype).requires_grad_()
    labels = torch.randint(WORDS, (1, TOKENS))
    labels[0, 3:5] = -100
    loss = parts(logits, labels, WORDS, num_items_in_batch=7)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = F.cross_entropy(logits.float()[0, :-1], labels[0, 1:], reduction="sum") / 7
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])
    mean = F.cross_entropy(logits.float()[0, :-1], labels[0, 1:])
    torch.testing.assert_close(parts(logits, labels, WORDS), mean)


def test_logits_that_are_not_divided_end_the_run(parts):
    with pytest.raises(SystemExit, match="not divided: logits of 40 words, and not of 33"):
        parts(torch.zeros(1, TOKENS, 40), torch.zeros(1, TOKENS, dtype=torch.long), WORDS)
