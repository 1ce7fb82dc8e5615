"""The count of tokens in a project: exact, whoever puts the batches together, and without a look at a device."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
from accelerate.data_loader import prepare_data_loader, skip_first_batches  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

LEAF = Path(__file__).resolve().parents[2] / "templates" / "fragments" / "token_count.py"
spec = importlib.util.spec_from_file_location("token_count", LEAF)
token_count = importlib.util.module_from_spec(spec)
spec.loader.exec_module(token_count)


def collate_padded(rows: list[dict]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    return {"input_ids": torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])}


def make_loader(lengths: list[int], **given) -> DataLoader:
    rows = [{"input_ids": [1] * length} for length in lengths]
    return DataLoader(rows, batch_size=4, collate_fn=collate_padded, **given)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 3}])
def test_tokens_are_those_of_the_batches_that_were_trained_on(workers):
    """Two epochs of 5 batches, the second left after 2 of them, which workers had prepared more of."""
    lengths = list(range(1, 21))
    loader = make_loader(lengths, **workers)
    count = token_count.TokenCount(loader)
    for batches in (5, 2):
        count.begin_epoch()
        for _, batch in zip(range(batches), loader, strict=False):
            assert batch.keys() == {"input_ids"}  # a model gets nothing new
            count.trained += 1
    assert count.count_own() == sum(lengths) + sum(lengths[:8])
    assert count.total("cpu") == (sum(lengths) + sum(lengths[:8]), 4 * (4 + 8 + 12 + 16 + 20) + 4 * (4 + 8))


def test_tokens_of_a_loader_of_accelerate_that_goes_on_in_the_middle():
    """As the Trainer resumes: the same loader, less what an earlier start had trained on."""
    loader = prepare_data_loader(make_loader([3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]))
    count = token_count.TokenCount(loader)
    count.begin_epoch()
    count.trained += len(list(skip_first_batches(loader, 1)))
    assert count.total("cpu") == (sum(range(7, 15)), 4 * 10 + 4 * 14)
