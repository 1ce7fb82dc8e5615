"""Tokens and padding of a run: counted where batches are put together, so that no device is waited for."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info


class TokenCount:
    """Counts by batch number: data workers are ahead of the training, and what they prepared in vain must not count."""

    def __init__(self, loader: DataLoader):
        self.counts = torch.zeros(len(loader), 2, dtype=torch.int64).share_memory_()  # of an epoch: tokens, places
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        base = getattr(loader, "base_dataloader", loader)  # Accelerate's loaders read from another
        self.collate, base.collate_fn = base.collate_fn, self
        self.trained = 0  # batches of this epoch
        self.past = torch.zeros(2, dtype=torch.int64)  # counts of earlier epochs
        self.seen_epoch, self.collated = 0, 0  # of the process that puts batches together

    def __call__(self, rows: list[dict]) -> dict:
        if self.seen_epoch != self.epoch.item():
            self.seen_epoch, self.collated = self.epoch.item(), 0
        batch, worker = self.collate(rows), get_worker_info()
        number = self.collated * worker.num_workers + worker.id if worker else self.collated  # workers take turns
        self.collated += 1
        tokens = sum(len(row["input_ids"]) for row in rows)
        self.counts[number, 0] = tokens
        self.counts[number, 1] = max(tokens, batch["input_ids"].numel())  # what texts share may stand there once
        return batch

    def begin_epoch(self) -> None:
        self.past += self.counts[: self.trained].sum(0)
        self.trained = 0
        self.epoch += 1

    def total(self, device: torch.device) -> tuple[int, int]:
        """Tokens and places (tokens and padding) that were trained on, of all processes."""
        counts = (self.past + self.counts[: self.trained].sum(0)).to(device)
        if dist.is_initialized():
            dist.all_reduce(counts)
        tokens, places = counts.tolist()
        return tokens, places
