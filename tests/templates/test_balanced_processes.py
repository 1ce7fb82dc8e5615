"""Rows dealt out to processes: the steps of a random order, as many tokens at a time for each, and the same after a resume."""

from __future__ import annotations

from types import SimpleNamespace as Values

import pytest
from leaves import load_beside

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
from accelerate.data_loader import prepare_data_loader, skip_first_batches  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler  # noqa: E402

emitted = load_beside("balanced_processes", "epoch_order")
LENGTHS = [(row * row) % 97 + 1 for row in range(101)]
ROWS, PASSES, PROCESSES = 3, 2, 4
STEP = ROWS * PASSES * PROCESSES
DATA = datasets.Dataset.from_dict({"full_length": [*LENGTHS[:-1], 10_000]})


def start_process(rank: int, processes: int = PROCESSES, rows: int = ROWS) -> DataLoader:
    """As the Trainer makes it."""
    torch.manual_seed(rank)
    numbers = list(range(len(LENGTHS)))
    loader = DataLoader(numbers, batch_size=rows, sampler=RandomSampler(numbers))
    return prepare_data_loader(
        loader, num_processes=processes, process_index=rank, put_on_device=False, use_seedable_sampler=True
    )


def read_epoch(loader, epoch=0.0, skipped=0, processes=PROCESSES, passes=PASSES, rows=ROWS, **seeds) -> list[list[int]]:
    shape = {"train_batch_size": rows, "gradient_accumulation_steps": passes, "world_size": processes}
    args = Values(**{"seed": 42, "data_seed": None, **shape} | seeds)
    emitted.BalanceProcesses(DATA, 97).on_epoch_begin(args, Values(epoch=epoch), None, train_dataloader=loader)
    return [batch.tolist() for batch in skip_first_batches(loader, skipped)]


def read_steps(processes: int, passes: int, rows: int) -> list[list[list[list[int]]]]:
    """By step, process and pass: the rows."""
    shape = {"processes": processes, "passes": passes, "rows": rows}
    each = [read_epoch(start_process(rank, processes, rows), **shape) for rank in range(processes)]
    whole = len(LENGTHS) // (processes * passes * rows)
    return [[batches[step * passes : (step + 1) * passes] for batches in each] for step in range(whole)]


def flatten(step) -> list[int]:
    return sorted(row for process in step for batch in process for row in batch)


def test_a_step_has_the_same_rows_however_many_processes_compute_it():
    one, two, four = read_steps(1, 24, 1), read_steps(2, 4, 3), read_steps(PROCESSES, PASSES, ROWS)
    assert [flatten(step) for step in one] == [flatten(step) for step in two] == [flatten(step) for step in four]
    assert len(four) == len(LENGTHS) // STEP and all(len(set(flatten(step))) == STEP for step in four)


def test_every_row_is_seen():
    each = [read_epoch(start_process(rank)) for rank in range(PROCESSES)]
    assert {row for batches in each for batch in batches for row in batch} == set(range(len(LENGTHS)))


def test_processes_have_about_as_many_tokens_at_a_time():
    lengths = emitted.BalanceProcesses(DATA, 97).lengths
    assert lengths[-1] == 97  # what is cut off is not computed
    for step in read_steps(PROCESSES, PASSES, ROWS):
        for at_a_time in zip(*step, strict=True):
            tokens = [sum(lengths[row] for row in batch) for batch in at_a_time]
            assert max(tokens) <= 1.25 * sum(tokens) / PROCESSES
            assert {len(batch) for batch in at_a_time} == {ROWS}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_resumed_within_an_epoch_goes_on_in_its_order(processes):
    first = start_process(0, processes)
    epochs = [read_epoch(first, epoch, processes=processes) for epoch in (0.0, 1.0, 2.0)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert read_epoch(start_process(0, processes), 1.375, skipped=4, processes=processes) == epochs[1][4:]


def test_another_seed_is_another_order():
    orders = [read_epoch(start_process(0), **seeds) for seeds in ({}, {"seed": 7}, {"data_seed": 7})]
    assert orders[0] != orders[1] == orders[2]
