"""The loss of a classifier: the mean over the rows of a step, however they are divided.

Transformers' classifiers return a mean over their micro-batch, which Trainer takes for a share of a sum: it would be
multiplied by the micro-batches of a step, and by the processes.
"""

import torch
from torch.nn import functional as F


class ClassLoss:
    """compute_loss_func of a Trainer, which hands it the rows of the whole step that have a label, of all processes."""

    def __init__(self, label_smoothing: float = 0.0):
        self.label_smoothing = label_smoothing

    def __call__(self, outputs, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None) -> torch.Tensor:
        logits, reduction = outputs["logits"].float(), "mean" if num_items_in_batch is None else "sum"
        loss = F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=self.label_smoothing)
        return loss if num_items_in_batch is None else loss / num_items_in_batch
