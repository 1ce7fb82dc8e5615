"""What a classifier gets right: accuracy, macro F1, and which labels it takes for which."""

import numpy as np
import torch

TABLE = 50
"""Labels of which all pairs are counted; of more a table cannot be read, and of 10,000 it has 100 million places."""
LISTED = 100
"""Mistakes that are listed in the place of a table."""


def keep_class(logits, labels) -> torch.Tensor:
    """The likeliest class of each row: all that the metrics need of what a model returns, its logits first."""
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(-1)


class ClassMetrics:
    """compute_metrics of a Trainer. ``mistakes`` are those of the last evaluation, as run.json has them."""

    def __init__(self, names: list[str]):
        self.names = names
        self.mistakes: dict = {}

    def __call__(self, prediction) -> dict[str, float]:
        labelled = prediction.label_ids != -100
        actual, predicted = prediction.label_ids[labelled], prediction.predictions[labelled]
        size = len(self.names)
        count = count_pairs if size <= TABLE else list_mistakes
        self.mistakes = count(actual, predicted, self.names)
        right = np.bincount(actual[actual == predicted], minlength=size)
        total = np.bincount(actual, minlength=size) + np.bincount(predicted, minlength=size)
        present = total > 0  # a label that is neither in the rows nor among the answers has no F1
        return {
            "accuracy": float(right.sum() / len(actual)),
            "macro_f1": float(np.mean(2 * right[present] / total[present])),
        }


def count_pairs(actual: np.ndarray, predicted: np.ndarray, names: list[str]) -> dict:
    """A table: its rows are true labels, its columns answers."""
    size = len(names)
    counts = np.bincount(actual * size + predicted, minlength=size * size).reshape(size, size)
    return {"confusion": {"labels": names, "counts": counts.tolist()}}


def list_mistakes(actual: np.ndarray, predicted: np.ndarray, names: list[str]) -> dict:
    """The most frequent ones."""
    wrong = np.stack([actual, predicted])[:, actual != predicted]
    pairs, counts = np.unique(wrong, axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:LISTED]
    return {
        "mistakes": [
            {"label": names[pairs[0, place]], "answer": names[pairs[1, place]], "count": int(counts[place])}
            for place in most
        ]
    }
