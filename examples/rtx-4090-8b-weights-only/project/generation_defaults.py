"""How tokens are chosen where a request does not say: as generation_config.json of the model asks, or most of it."""

import math
import sys
from typing import Any

from prompts import find_described, read_model_file

FILE = "generation_config.json"
RANGES = {
    "temperature": (0, math.inf),
    "top_p": (0, 1),
    "top_k": (-1, math.inf),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, math.inf),
}
"""What can be chosen by. A top_k of -1 is 0 elsewhere: all tokens."""
OF_DRAWING = {"temperature", "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}
"""Without ``do_sample`` they say nothing, as in `generate`."""
OF_BEAMS = {"early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty"}
"""They say nothing without ``num_beams``, which is said."""
ELSEWHERE = {
    *("do_sample", "max_length", "max_new_tokens", "use_cache", "transformers_version", "renormalize_logits"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("disable_compile", "is_assistant", "low_memory", "use_mtp"),
}
"""Fields that the server answers in its own way (limits, ends), or that choose no token."""
OF_SPEED = ("assistant_", "cache_", "compile_", "continuous_", "max_cache_", "num_assistant_", "output_", "prefill_")
OF_SPEED += ("prompt_lookup_", "return_", "speculation_", "target_")
"""How fields begin that say how `generate` computes, and what else it gives back."""
NEUTRAL_ONES = {
    *("temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty", "guidance_scale"),
    *("num_beams", "num_return_sequences"),
}
"""Fields that ask for nothing with 1; others do with 0."""


def read_own(config: dict) -> dict:
    return read_model_file(find_described(config), config.get("revision"), FILE)


def read_defaults(config: dict, applied: frozenset[str]) -> tuple[dict[str, float], list[str]]:
    """Fields of Sampling, with OpenAI's values where the model is not made for drawing; and what else the file asks.

    ``applied`` is what the engine does of top_k, min_p and repetition_penalty.
    """
    own = read_own(config)
    silent = set() if own.get("do_sample") else OF_DRAWING
    fields = {"temperature", "top_p", *applied} - silent
    asked = {name: read_number(name, own[name]) for name in sorted(fields) if own.get(name) is not None}
    taken = {name: value for name, value in asked.items() if value is not None}
    known = taken.keys() | silent | OF_BEAMS | ELSEWHERE
    left = [f"{name} {value!r}" for name, value in sorted(own.items()) if name not in known and asks(name, value)]
    return {"temperature": 1.0, "top_p": 1.0} | taken, left


def read_number(name: str, value: Any) -> float | None:
    """``None``: by that no token can be chosen."""
    least, most = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        return None
    if name != "top_k":
        return value if math.isfinite(value) else None
    return max(0, int(value)) if value == value // 1 else None


def asks(name: str, value: Any) -> bool:
    if name.startswith(("_", *OF_SPEED)) or value is None:
        return False
    return value not in ("", [], {}, 1 if name in NEUTRAL_ONES and value is not True else 0)


def read_choices(config: dict, applied: frozenset[str], draws: bool) -> dict[str, Any]:
    """Fields of Sampling but the temperature: of tokens that are drawn all that the file asks, of the likeliest the
    penalty of those which were there before, as `generate` does. What it asks besides, and is not done, is told."""
    asked, left = read_defaults(config, applied)
    if left:
        print(f"the model's {FILE} asks what is not done here: {', '.join(left)}", file=sys.stderr)
    return {name: asked[name] for name in asked if name == "repetition_penalty" or (draws and name != "temperature")}
