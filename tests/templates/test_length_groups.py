"""The order of length-grouped batches: of seed and epoch alone, so that a resumed run goes on where it stopped."""

from __future__ import annotations

from types import SimpleNamespace as Values

import pytest
from leaves import load_beside

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")
from accelerate.data_loader import prepare_data_loader, skip_first_batches  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers.trainer_pt_utils import LengthGroupedSampler  # noqa: E402

length_groups = load_beside("length_groups", "epoch_order")
ROWS, BATCH = list(range(1, 65)), 4


def start_process(rank: int, processes: int = 1) -> DataLoader:
    """As the Trainer makes it; every process has drawn another amount from the global generator by then."""
    torch.manual_seed(rank)
    sampler = LengthGroupedSampler(2 * BATCH, lengths=[row % 13 for row in ROWS])
    loader = DataLoader(ROWS, batch_size=BATCH, sampler=sampler)
    return prepare_data_loader(
        loader, num_processes=processes, process_index=rank, put_on_device=False, use_seedable_sampler=True
    )


def read_epoch(loader: DataLoader, epoch: float, skipped: int = 0, world: int = 1, **seeds) -> list[list[int]]:
    shape = {"train_batch_size": BATCH, "gradient_accumulation_steps": 2, "world_size": world}
    args = Values(**{"seed": 42, "data_seed": None, **shape} | seeds)
    length_groups.SeedLengthGroups().on_epoch_begin(args, Values(epoch=epoch), None, train_dataloader=loader)
    return [batch.tolist() for batch in skip_first_batches(loader, skipped)]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_resumed_within_an_epoch_goes_on_in_its_order(processes):
    first = start_process(0, processes)
    epochs = [read_epoch(first, epoch) for epoch in (0, 1.0, 2.0)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert read_epoch(start_process(0, processes), 1.375, skipped=3) == epochs[1][3:]
    assert read_epoch(start_process(0, processes), 1.0) == epochs[1]


def test_every_process_has_its_share_of_one_order():
    shares = [read_epoch(start_process(rank, 2), 1.0) for rank in (0, 1)]
    assert sorted(row for share in shares for batch in share for row in batch) == ROWS


def test_another_seed_is_another_order():
    orders = [read_epoch(start_process(0), 0, **seeds) for seeds in ({}, {"seed": 7}, {"data_seed": 7})]
    assert orders[0] != orders[1] == orders[2]
