"""Tokens of the data whose embeddings nobody trained: adapters leave them as they are, and the tokens stay alike."""

import os
from itertools import chain

import torch

EXAMPLES = 1000
"""That are looked into."""
ROWS = 4096
"""Of the embeddings: their mean is off by a 64th of the distance that a row has from it."""
ZERO, NEAR = 1e-3, 0.05
"""Shares of the usual length of a row, and of its distance from the mean, below which no training left it. A token that
resize_token_embeddings adds lies 3e-5 from the mean (Transformers 5), vendors' reserved ones are zero."""
SHOWN = 8


def warn_of_untrained(model, tokenizer, dataset, lora: dict) -> None:
    """Prints which they are, and what trains them too, but for those that ``lora`` of config.yaml trains."""
    if os.environ.get("RANK", "0") != "0":  # others may have no weights yet: FSDP gives them those of the first
        return
    tokens = list_tokens(dataset)
    parts = {"input": model.get_input_embeddings(), "output": model.get_output_embeddings()}
    weights = {part: layer.weight for part, layer in parts.items() if layer is not None}
    tied = "output" not in weights or weights["output"] is weights["input"]
    rows = lora.get("trainable_token_indices") or []
    trained = set.intersection(*map(set, rows.values())) if isinstance(rows, dict) else set(rows)
    untrained = [token for token in find_untrained(weights["input"], tokens) if token not in trained]
    if not untrained:
        return
    shown = ", ".join(repr(token) for token in tokenizer.convert_ids_to_tokens(untrained[:SHOWN]))
    shown += ", …" if len(untrained) > SHOWN else ""
    names = {layer: name.rpartition(".")[2] for name, layer in model.named_modules()}
    indices = untrained if tied else {names[layer]: untrained for layer in parts.values()}
    print(
        f"nobody trained the embeddings of {shown}, which the data has: they are zero, or the mean of all,\n"
        "and adapters leave them so. To train these too, in config.yaml under lora:\n"
        f"  trainable_token_indices: {indices}"
    )


def list_tokens(dataset) -> list[int]:
    rows = (dataset[index]["input_ids"] for index in range(min(len(dataset), EXAMPLES)))
    return sorted(set(chain.from_iterable(rows)))


def find_untrained(embeddings: torch.Tensor, tokens: list[int]) -> list[int]:
    """Of the tokens those whose row is zero, or the mean of all rows."""
    with torch.no_grad():
        sample = embeddings[:: -(-len(embeddings) // ROWS)].float()
        mean = sample.mean(dim=0)
        rows = embeddings[torch.tensor(tokens, device=embeddings.device)].float()
        zero = rows.norm(dim=1) < ZERO * sample.norm(dim=1).median()
        near = (rows - mean).norm(dim=1) < NEAR * (sample - mean).norm(dim=1).median()
        return torch.tensor(tokens)[(zero | near).cpu()].tolist()
