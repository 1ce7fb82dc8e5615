"""The dtype that a config.json says its weights have."""

from __future__ import annotations

from collections.abc import Iterator

KNOWN = ("bfloat16", "float16", "float32", "float64", "half", "float", "double")
"""What Transformers 5.23 loads a model in: other names of torch end in its loading (FINDINGS.md)."""
KEYS = ("dtype", "torch_dtype")
OTHER_DTYPES = ("quantization_config",)
"""Parts whose dtypes are those of a format, not of the weights as they are computed with."""


def find_unknown_dtypes(config: dict, path: str = "") -> Iterator[str]:
    """What stands for a dtype in a config, or in one of its parts, and names none that a model can be loaded in."""
    for key, value in config.items():
        if key in KEYS and isinstance(value, str) and value not in KNOWN:
            short = value if len(value) <= 40 else f"{value[:37]}..."
            yield f"{path}{key} is {short!r}, which no model can be loaded in; known are {', '.join(KNOWN)}"
        elif isinstance(value, dict) and key.endswith("_config") and key not in OTHER_DTYPES:
            yield from find_unknown_dtypes(value, f"{key}.")
