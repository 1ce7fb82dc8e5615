"""The model of a row: its architecture, from the columns, the stated number of parameters or the published model of that name."""

from __future__ import annotations

import re
from itertools import product
from operator import itemgetter

from generator.estimate.cells import Uncostable, read_count, read_params
from generator.model import ModelSpec, describe
from generator.model.catalog import find_catalog_model, find_full_name, list_nearest_names

HEAD_DIM_GUESS = 128
HEAD_DIMS = (64, 128, 256)
"""that models have whose heads are not as wide as their hidden states together (Qwen3, Gemma, Mistral-Nemo)"""
ALIKE = 0.02
"""Share by which a stated number of parameters may differ from a published model's: pages round it."""
EXACT = 0.005
"""Share within which a count of heads of unusual width must come, and that of the usual ones does not: else it is chance."""

OWN_MODELS = ("litgpt", "megatron", "nemo", "nanotron", "llm-foundry", "internlm")
"""Frameworks that write the models anew: litgpt's Falcon does not tie its embeddings."""


def read_spec(get) -> ModelSpec:
    """The published sizes of the model that the row names, unless its architecture columns say otherwise."""
    if not get("n_layers", ""):
        return _find_published(get("model", ""))
    own = get("framework", "").lower().startswith(OWN_MODELS)
    published = None if own else _find_known(get("model", ""))
    if published is not None and _agrees(get, published):
        return published
    layers, hidden = read_count(get, "n_layers"), read_count(get, "hidden")
    heads = read_count(get, "n_heads", max(1, hidden // HEAD_DIM_GUESS))
    kv_heads = read_count(get, "n_kv_heads", heads)
    vocab, ffn = read_count(get, "vocab", 32000), read_count(get, "ffn_hidden", 4 * hidden)
    experts, active = _read_experts(get)
    stated = read_params(get)

    def count(head_dim: int, gated: bool, tied: bool) -> tuple[int, int, int]:
        """Parameters of a block's attention and of one feed-forward part, and all."""
        attention = 2 * hidden * head_dim * (heads + kv_heads)
        mlp = (3 if gated else 2) * hidden * ffn
        return attention, mlp, layers * (attention + mlp * max(experts, 1)) + vocab * hidden * (1 if tied else 2)

    def find_nearest(head_dims: tuple[int, ...]) -> tuple[float, tuple[int, bool, bool]]:
        """Width of heads, gated, tied: whose count is nearest the stated one, and by which share of it they differ."""
        forms = product(head_dims, (True, False), (False, True))
        return min(((abs(count(*form)[-1] / stated - 1), form) for form in forms), key=itemgetter(0))

    head_dim = max(1, hidden // heads)
    gated, tied = ffn < 4 * hidden, False
    if stated:
        off, (head_dim, gated, tied) = find_nearest((head_dim,))
        other, form = find_nearest(HEAD_DIMS)
        if other <= EXACT and off > ALIKE:
            head_dim, gated, tied = form
    attention, mlp, _ = count(head_dim, gated, tied)
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


def _agrees(get, spec: ModelSpec) -> bool:
    """Whether what the row states of its model is so of the published one."""
    stated = read_params(get)
    names = {"n_layers": spec.layers, "hidden": spec.hidden, "n_heads": spec.heads, "n_kv_heads": spec.kv_heads}
    same = all(read_count(get, name, value) == value for name, value in names.items())
    return same and (not stated or abs(stated - spec.params) <= ALIKE * spec.params)


def _find_known(name: str) -> ModelSpec | None:
    model = find_catalog_model(name) or find_catalog_model(find_full_name(name) or "")
    return describe(dict(model.config), name=model.name) if model else None


def _find_published(name: str) -> ModelSpec:
    spec = _find_known(name)
    if spec is None:
        near = ", ".join(list_nearest_names(name))
        raise Uncostable(
            f"n_layers is not stated, and `perfgen models` has no {name!r}{f'; near it are {near}' if near else ''}"
        )
    return spec


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
