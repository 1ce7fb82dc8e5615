"""The model of a row: its architecture, from the columns, the stated number of parameters or the published model of that name."""

from __future__ import annotations

import re

from generator.estimate.cells import Uncostable, read_count, read_params
from generator.model import ModelSpec, describe
from generator.model.catalog import find_catalog_model, find_full_name, list_nearest_names

HEAD_DIM_GUESS = 128


def read_spec(get) -> ModelSpec:
    """The architecture columns of the row, or where it has none the published sizes of the model that it names."""
    if not get("n_layers", ""):
        return _find_published(get("model", ""))
    layers, hidden = read_count(get, "n_layers"), read_count(get, "hidden")
    heads = read_count(get, "n_heads", max(1, hidden // HEAD_DIM_GUESS))
    kv_heads = read_count(get, "n_kv_heads", heads)
    vocab, ffn = read_count(get, "vocab", 32000), read_count(get, "ffn_hidden", 4 * hidden)
    experts, active = _read_experts(get)
    head_dim = max(1, hidden // heads)
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    stated = read_params(get)
    gated, tied = _describe_blocks(stated, layers, attention, hidden, ffn, vocab, experts)
    mlp = (3 if gated else 2) * hidden * ffn
    linear = layers * (attention + mlp * max(experts, 1))
    ends = vocab * hidden * (1 if tied else 2)
    params = int(stated) or linear + ends + 2 * layers * hidden
    return ModelSpec(
        name=get("model", ""),
        model_type=_read_model_type(get),
        architecture=None,
        kind="decoder",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        gated=gated,
        tied_embeddings=tied,
        experts=experts,
        experts_per_token=active,
        expert_ffn=ffn if experts else 0,
        params=params,
        active_params=params - layers * mlp * (experts - active) if experts else params,
        embedding_params=vocab * hidden,
        linear_params=min(linear, params),
        basis="derived",
    )


def _find_published(name: str) -> ModelSpec:
    model = find_catalog_model(name) or find_catalog_model(find_full_name(name) or "")
    if model is None:
        near = ", ".join(list_nearest_names(name))
        raise Uncostable(
            f"n_layers is not stated, and `perfgen models` has no {name!r}{f'; near it are {near}' if near else ''}"
        )
    return describe(dict(model.config), name=model.name)


def _read_experts(get) -> tuple[int, int]:
    """Routed experts of a block, and how many of them a token goes to: from the columns, or words such as 2 of 8 experts active."""
    if get("n_experts", ""):
        return read_count(get, "n_experts"), read_count(get, "experts_per_token")
    words = re.search(r"\b(\d+) of (\d+) experts\b", get("notes", ""))
    return (int(words[2]), int(words[1])) if words else (0, 0)


ROTARY_FAMILIES = {
    "phi-": "phi",
    "stablelm alpha": "gpt_neox",
    "pythia": "gpt_neox",
    "falcon": "falcon",
    "starcoder2": "starcoder2",
}
"""model types, with rotary embeddings, of models without gates, by how their names begin"""


def _read_model_type(get) -> str:
    """The name itself, which some prefixes are compared with; of served models a type whose operators are known."""
    name = get("model", "").rsplit("/", 1)[-1].lower()
    served = get("phase", "") == "infer"
    return next((kind for start, kind in ROTARY_FAMILIES.items() if served and name.startswith(start)), name)


def _describe_blocks(
    stated: float, layers: int, attention: int, hidden: int, ffn: int, vocab: int, experts: int
) -> tuple[bool, bool]:
    """Whether the block is gated and the embeddings tied: the pair whose count is nearest the stated one."""
    if not stated:
        return ffn < 4 * hidden, False

    def count(gated: bool, tied: bool) -> float:
        mlp = (3 if gated else 2) * hidden * ffn * max(experts, 1)
        return layers * (attention + mlp) + vocab * hidden * (1 if tied else 2)

    pairs = [(gated, tied) for gated in (True, False) for tied in (False, True)]
    return min(pairs, key=lambda pair: abs(count(*pair) - stated))
