"""What all texts of a batch begin with, a system prompt and the like, computed once for them.

Attention is causal: of tokens that are the same in every text and stand before all others, hidden states, keys and
values are the same, too. The first text keeps them, the others begin where they part; their attention gets them back
(row_attention.py). Nothing is learned from these tokens, so that loss and gradients are what they were.
"""

from functools import wraps
from itertools import pairwise

import torch
from transformers import Trainer


def share_prefix(trainer: Trainer) -> None:
    """``trainer`` puts the texts of a batch one after the other."""
    collate = trainer.data_collator

    @wraps(collate)
    def collate_shared(examples: list[dict]) -> dict:
        return drop_repeated(collate(examples))

    trainer.data_collator = collate_shared


def drop_repeated(batch: dict) -> dict:
    """The batch without what later texts repeat of the first: limits of what stands there, and of whole texts."""
    limits = batch["cu_seq_lens_q"]
    starts, shared = limits[:-1].tolist(), count_shared(batch)
    if not shared or len(starts) == 1:
        return batch
    kept = torch.ones(int(limits[-1]), dtype=torch.bool)
    for start in starts[1:]:
        kept[start : start + shared] = False
    dropped = shared * torch.arange(len(limits), dtype=limits.dtype).sub(1).clamp(min=0)
    tokens = {name: value[:, kept] for name, value in batch.items() if name in ("input_ids", "labels", "position_ids")}
    rows = (limits - dropped).diff()
    return (
        batch
        | tokens
        | {
            "cu_seq_lens_q": limits - dropped,
            "max_length_q": int(rows.max()),
            "seq_idx": torch.repeat_interleave(torch.arange(len(rows), dtype=torch.int32), rows)[None],
        }
    )


def count_shared(batch: dict) -> int:
    """Tokens that all texts begin with. None of them is learned from, nor the one after them, which they predict."""
    limits = batch["cu_seq_lens_q"].tolist()
    texts = [batch["input_ids"][0, start:end] for start, end in pairwise(limits)]
    most = min(map(len, texts)) - 1
    rows = torch.stack([text[:most] for text in texts])
    differs = (rows != rows[0]).any(dim=0)
    labels = torch.stack([batch["labels"][0, start + 1 : start + 1 + most] for start in limits[:-1]])
    ends = differs | (labels != -100).any(dim=0)
    return int(ends.int().argmax()) if ends.any() else most
