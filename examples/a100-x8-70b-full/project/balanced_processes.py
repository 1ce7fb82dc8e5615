"""The rows of each optimizer step, dealt out so that all processes compute about as many tokens at a time.

A step has the rows that a plain random order gives it, so that its gradient is the same. Which process computes which,
and when, is chosen: processes meet in every micro-batch or step, and wait for the one with the most tokens.
"""

import heapq
from collections.abc import Iterator, Sequence

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import TrainerCallback

from epoch_order import choose_seed, find_batches


class BalanceProcesses(TrainerCallback):
    """Puts its sampler into the data loader at the beginning of each epoch, the same one in every process."""

    def __init__(self, rows: Dataset, seq_len: int):
        self.lengths = [min(length, seq_len) for length in rows["full_length"][:]]

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        shape = args.train_batch_size, args.gradient_accumulation_steps, args.world_size
        find_batches(train_dataloader).sampler = BalancedSampler(self.lengths, *shape, choose_seed(args, state))


class BalancedSampler(Sampler):
    """Rows in random order, those of each step dealt out: process after process takes ``rows``, ``passes`` times.
    Which rows a step has depends on ``seed`` and their number alone."""

    def __init__(self, lengths: Sequence[int], rows: int, passes: int, processes: int, seed: int):
        self.lengths, self.rows, self.passes, self.processes, self.seed = lengths, rows, passes, processes, seed

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(self.seed)).tolist()
        step = self.rows * self.passes * self.processes
        for start in range(0, len(order), step):
            rows = order[start : start + step]
            yield from rows if len(rows) < step else self.deal_out(rows)

    def deal_out(self, rows: Sequence[int]) -> Iterator[int]:
        """The longest first, each to the micro-batch that has the fewest tokens and is not full (Graham's longest
        processing time first, 1969); then micro-batches by their tokens: those of the same time have about as many."""
        places = range(self.passes * self.processes)
        batches, tokens, open_places = [[] for _ in places], [0 for _ in places], [(0, place) for place in places]
        for row in sorted(rows, key=lambda row: -self.lengths[row]):
            _, place = heapq.heappop(open_places)
            batches[place].append(row)
            tokens[place] += self.lengths[row]
            if len(batches[place]) < self.rows:
                heapq.heappush(open_places, (tokens[place], place))
        for place in sorted(places, key=lambda place: -tokens[place]):
            yield from batches[place]
