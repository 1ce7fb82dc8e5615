"""What the outputs of a classifier say, by its config.json: one label of all, each label by itself, or values."""

from typing import Any

COLUMNS = {"label": "string", "probability": "double", "probabilities": "any", "values": "any"}
"""Of an output row. Values are of a model that was trained to give numbers, which has no label to choose."""


def describe_scores(config: Any, logits: Any, top: int | None = None) -> list[dict]:
    """A dict a row; probabilities of the likeliest ``top`` labels, or of all. As Transformers' pipelines take them."""
    names, scores = config.id2label, logits.float()
    if config.problem_type == "regression":
        values = [{names[place]: value for place, value in enumerate(row)} for row in scores.tolist()]
        return [dict.fromkeys(COLUMNS) | {"values": row} for row in values]
    apart = config.problem_type == "multi_label_classification" or scores.shape[-1] == 1
    shares = scores.sigmoid() if apart else scores.softmax(-1)
    return [name_shares(names, row, top) for row in shares.tolist()]


def name_shares(names: dict[int, str], shares: list[float], top: int | None) -> dict:
    best = sorted(range(len(shares)), key=lambda place: -shares[place])
    kept = range(len(shares)) if top is None else best[:top]
    named = {names[place]: shares[place] for place in kept}
    return {"label": names[best[0]], "probability": shares[best[0]], "probabilities": named, "values": None}
