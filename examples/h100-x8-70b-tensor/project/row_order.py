"""Which rows each copy of the model trains on: those that Trainer's sampler would give it, however many there are."""

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, Sampler

from run_report import RunReport


class RowOrder(Sampler[list[int]]):
    """The micro-batches of one copy, step after step of an epoch. Rows that fill no global batch are left out of it."""

    def __init__(self, rows: int, args, copy: int):
        self.rows, self.copy = rows, copy
        self.copies, self.batch, self.accumulated = (
            args.world_size,
            args.train_batch_size,
            args.gradient_accumulation_steps,
        )
        self.seed = args.seed if args.data_seed is None else args.data_seed
        self.steps = rows // (self.batch * self.copies * self.accumulated)
        self.epoch, self.step = 0, 0

    def begin(self, epoch: int, step: int) -> None:
        """What is iterated next: this epoch, from this step on."""
        self.epoch, self.step = epoch, step

    def __len__(self) -> int:
        return self.steps * self.accumulated

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        for number in range(self.step * self.accumulated, len(self)):
            first = (number * self.copies + self.copy) * self.batch
            yield order[first : first + self.batch]


class EvaluationOrder(Sampler[list[int]]):
    """The batches of one copy, in the order of the rows."""

    def __init__(self, rows: int, batch: int, copies: int, copy: int):
        self.rows, self.batch, self.copies, self.copy = rows, batch, copies, copy

    def __len__(self) -> int:
        return self.rows // (self.batch * self.copies)

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(len(self)):
            first = (number * self.copies + self.copy) * self.batch
            yield list(range(first, first + self.batch))


def make_loader(dataset, order: Sampler, collate: Callable, args) -> DataLoader:
    return DataLoader(
        dataset,
        batch_sampler=order,
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory and args.device.type not in ("cpu", "mps"),
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
        generator=torch.Generator(),  # each beginning draws a number: dropout would go on with others after a resume
    )


class LoopReport(RunReport):
    """Processes that train on the same rows count their tokens once."""

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        count_all = self.tokens.total

        def count_once(device: torch.device) -> tuple[int, int]:
            tokens, places = count_all(device)
            return tokens // args.sharers, places // args.sharers

        self.tokens.total = count_once
