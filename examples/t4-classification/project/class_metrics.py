"""What a classifier gets right: accuracy, macro F1, and which labels it takes for which."""

import numpy as np
import torch


def keep_class(logits, labels) -> torch.Tensor:
    """The likeliest class of each row: all that the metrics need of what a model returns, its logits first."""
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(-1)


class ClassMetrics:
    """compute_metrics of a Trainer. ``confusion`` is of the last evaluation: rows are true labels, columns answers."""

    def __init__(self, names: list[str]):
        self.names = names
        self.confusion: dict | None = None

    def __call__(self, prediction) -> dict[str, float]:
        labelled = prediction.label_ids != -100
        actual, predicted = prediction.label_ids[labelled], prediction.predictions[labelled]
        size = len(self.names)
        counts = np.bincount(actual * size + predicted, minlength=size * size).reshape(size, size)
        self.confusion = {"labels": self.names, "counts": counts.tolist()}
        right, total = np.diag(counts), counts.sum(0) + counts.sum(1)
        present = total > 0  # a label that is neither in the rows nor among the answers has no F1
        return {
            "accuracy": float(right.sum() / counts.sum()),
            "macro_f1": float(np.mean(2 * right[present] / total[present])),
        }
