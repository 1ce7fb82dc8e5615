"""How tokens are chosen where a request does not say: as generation_config.json of the model asks, or most of it."""

import sys

from prompts import find_described, read_model_file

FILE = "generation_config.json"
OF_DRAWING = ("temperature", "top_p", "top_k", "min_p")
"""Without ``do_sample`` they say nothing, as in `generate`."""
ELSEWHERE = {"do_sample", "max_length", "max_new_tokens", "use_cache", "cache_implementation", "transformers_version"}
"""Fields that the server answers in its own way (limits, cache), or that choose no token."""
NEUTRAL = (None, False, 0, 1, "", [], {})
"""What asks for nothing, whatever the field."""


def read_defaults(config: dict, applied: frozenset[str]) -> tuple[dict[str, float], list[str]]:
    """Fields of Sampling, with OpenAI's values where the model is not made for drawing; and what else the file asks.

    ``applied`` is what the engine does of top_k, min_p and repetition_penalty.
    """
    own = read_model_file(find_described(config), config.get("revision"), FILE)
    taken = {"temperature", "top_p", *applied} - (set() if own.get("do_sample") else set(OF_DRAWING))
    asked = {name: own[name] for name in sorted(taken) if own.get(name) is not None}
    known = taken | ELSEWHERE | (set() if own.get("do_sample") else set(OF_DRAWING))
    left = [
        f"{name} {value}"
        for name, value in sorted(own.items())
        if name not in known and value not in NEUTRAL and not name.startswith("_") and not name.endswith("_token_id")
    ]
    return {"temperature": 1.0, "top_p": 1.0} | asked, left


def read_penalty(config: dict, applied: frozenset[str]) -> float:
    """That of tokens which were there before: `generate` asks it of the likeliest token too. What the file asks
    besides, and the engine does not do, is told."""
    asked, left = read_defaults(config, applied)
    if left:
        print(f"the model's {FILE} asks what is not done here: {', '.join(left)}", file=sys.stderr)
    return asked.get("repetition_penalty", 1.0)
