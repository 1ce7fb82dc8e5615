"""Batches of similar lengths in an order that depends on seed, epoch and global batch alone.

Transformers draws it from PyTorch's global generator: a run that is resumed in the middle of an epoch would go on in
another order, and train on some rows twice and on others not at all. It also sorts what each process takes by itself:
several would compute texts of different lengths at the same time, and all wait for the longest.
"""

import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler


class SeedLengthGroups(TrainerCallback):
    """Gives the sampler a generator of its own at the beginning of each epoch, the same one in every process, and whole
    batches of all of them to sort."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler = find_sampler(train_dataloader)
        sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))
        sampler.batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def find_sampler(loader: DataLoader) -> LengthGroupedSampler:
    """Accelerate puts each process's share of the batches around it."""
    batches = loader.batch_sampler
    while not hasattr(batches, "sampler"):
        batches = batches.batch_sampler
    return batches.sampler
