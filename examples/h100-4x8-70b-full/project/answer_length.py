"""How long an answer can be: a model has so many positions for prompt and answer together."""

import sys

from transformers import PretrainedConfig


def fit_answer(config: PretrainedConfig, prompt_tokens: int, new_tokens: int) -> int:
    """``new_tokens``, or as many as the model has positions for, which is said."""
    if not prompt_tokens:
        sys.exit("--prompt has no tokens: there is nothing to go on from")
    places = count_positions(config)
    if places is None or prompt_tokens + new_tokens <= places:
        return new_tokens
    if prompt_tokens >= places:
        sys.exit(f"--prompt has {prompt_tokens} tokens, and the model {places} positions: no room for an answer")
    print(f"{places - prompt_tokens} new tokens at most: the model has {places} positions", file=sys.stderr)
    return places - prompt_tokens


def count_positions(config: PretrainedConfig) -> int | None:
    """``None`` for a model of any length, for which XLNet's says -1."""
    places = getattr(config.get_text_config(), "max_position_embeddings", None)
    return places if places is not None and places > 0 else None
