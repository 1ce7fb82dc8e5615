"""How the hidden states of a text become one vector: as sentence-transformers' files beside the model say."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from sources import find_source

MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
"""Keys of 1_Pooling/config.json, of which one is true."""
WORDS = {"cls": "first", "lasttoken": "last"}
"""Of newer files, where they are others than here."""
KNOWN = ("Transformer", "Pooling", "Normalize")
"""Modules of modules.json that are computed here, by the end of their type."""


def read_pooling(config: dict) -> Callable:
    """A function of hidden states and mask. Mean and length 1 where the model says nothing. Ends the process where it
    says what is not computed here."""
    modules = read_file(config, "modules.json")
    kinds = [module["type"].rpartition(".")[2] for module in modules or []]
    if unknown := [kind for kind in kinds if kind not in KNOWN]:
        sys.exit(f"modules.json of the model has {', '.join(unknown)}, which batch.py does not compute")
    normalized = "Normalize" in kinds if modules else True
    folder = next((module["path"] for module in modules or [] if module["type"].endswith("Pooling")), "1_Pooling")
    pooling = read_file(config, f"{folder}/config.json")
    mode = read_mode(pooling) if pooling else "mean"

    def pool(states, mask):
        import torch

        vectors = POOLS[mode](states, mask)
        return torch.nn.functional.normalize(vectors, dim=-1) if normalized else vectors

    return pool


def read_longest(config: dict) -> tuple[int, str] | None:
    """Tokens of the longest text that the model's makers embed, and who says so: sentence-transformers cuts there."""
    name = "sentence_bert_config.json"
    most = (read_file(config, name) or {}).get("max_seq_length")
    return (most, f"max_seq_length of the model's {name}") if isinstance(most, int) else None


def read_mode(pooling: dict) -> str:
    """The name of one way to pool, of the keys of old files or the word of new ones."""
    if isinstance(pooling.get("pooling_mode"), str):
        asked = [WORDS.get(pooling["pooling_mode"], pooling["pooling_mode"])]
    else:
        asked = [MODES.get(key, key) for key, value in pooling.items() if key.startswith("pooling_mode_") and value]
    if len(asked) != 1 or asked[0] not in POOLS:
        sys.exit(
            f"the model pools by {' and '.join(asked) or 'nothing'}: batch.py knows {', '.join(POOLS)}, one of them"
        )
    return asked[0]


def read_file(config: dict, name: str):
    """A JSON file of the model; ``None`` where there is none."""
    from transformers.utils import cached_file

    source = str(find_source(config, "model"))
    revision = config.get("revision")
    path = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else None


def average(states, mask):
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def take_last(states, mask):
    """Whichever side the padding stands on."""
    places = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return states[range(len(states)), places]


def take_first(states, mask):
    return states[range(len(states)), mask.argmax(1)]


def take_largest(states, mask):
    return states.masked_fill(mask[..., None] == 0, float("-inf")).max(1).values


POOLS = {"mean": average, "first": take_first, "last": take_last, "max": take_largest}
