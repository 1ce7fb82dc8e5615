"""Batches of similar lengths in an order that depends on seed, epoch and global batch alone.

Transformers draws it from PyTorch's global generator: a run that is resumed in the middle of an epoch would go on in
another order, and train on some rows twice and on others not at all. It also sorts what each process takes by itself:
several would compute texts of different lengths at the same time, and all wait for the longest.
"""

import torch
from transformers import TrainerCallback

from epoch_order import choose_seed, find_batches


class SeedLengthGroups(TrainerCallback):
    """Gives the sampler a generator of its own at the beginning of each epoch, the same one in every process, and whole
    batches of all of them to sort."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        sampler = find_batches(train_dataloader).sampler  # a LengthGroupedSampler
        sampler.generator = torch.Generator().manual_seed(choose_seed(args, state))
        sampler.batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
