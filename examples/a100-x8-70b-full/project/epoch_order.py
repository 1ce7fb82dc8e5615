"""What draws the rows of an epoch, in the same order in every process and after every resume."""

from torch.utils.data import BatchSampler, DataLoader
from transformers import TrainerState, TrainingArguments


def choose_seed(args: TrainingArguments, state: TrainerState) -> int:
    """Of the epoch that begins, or is gone on with."""
    return (args.seed if args.data_seed is None else args.data_seed) + int(state.epoch or 0)


def find_batches(loader: DataLoader) -> BatchSampler:
    """Accelerate puts each process's share of the batches around it."""
    batches = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return batches
