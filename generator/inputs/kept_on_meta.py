"""What generation keeps of a sequence, as the cache of a model on the meta device has it after two prompts: no values, only shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

PROMPTS = (256, 512)
"""tokens of the two: what differs between them grows with the tokens. Multiples of the 128 that DeepSeek-V4 makes one entry of"""


def measure_kept(model, layers: int, width: int) -> tuple[list[list], int]:
    """The layers that attend as ``Attended`` has them, and elements that do not grow; nothing where the model cannot be run so.

    ``width``: heads times the mean of key and value size. Layers that read the cache of another keep nothing.
    """
    try:
        short, long = (run_prompt(model, tokens) for tokens in PROMPTS)
    except Exception:  # whatever a model of any kind may raise without values: its cache is then assumed, and said
        return [], 0
    if not long or len(short) != len(long):
        return [], 0
    kinds: Counter[tuple[int, int | None]] = Counter()
    state = 0
    for before, after in zip(short, long, strict=True):
        each, window, constant = describe_layer(before, after)
        state += constant
        if each:
            kinds[each, window] += 1
    if not kinds:
        return [], 0
    if layers > len(long):
        kinds[0, None] += layers - len(long)
    return [[count, width, each, window] for (each, window), count in kinds.items()], state


def run_prompt(model, tokens: int) -> list[tuple[int, int | None, int | None]]:
    """Of each layer's cache: elements, the window that it keeps, and the positions that it has."""
    import torch

    model.config.pad_token_id = None  # with one it looks for it among the tokens
    with torch.no_grad():
        output = model(input_ids=torch.ones((1, tokens), dtype=torch.long, device="meta"), use_cache=True)
    caches = output.past_key_values.layers
    return [
        (sum(t.numel() for t in list_tensors(cache)), read_window(cache), read_positions(cache)) for cache in caches
    ]


def list_tensors(cache) -> Iterator:
    """Keys, values and states; not the counters beside them."""
    import torch

    for value in vars(cache).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from (item for item in values if isinstance(item, torch.Tensor) and item.dim() > 1)


def read_window(cache) -> int | None:
    from transformers.cache_utils import DynamicSlidingWindowLayer

    return cache.sliding_window if type(cache) is DynamicSlidingWindowLayer else None


def read_positions(cache) -> int | None:
    keys = getattr(cache, "keys", None)
    return None if keys is None or keys.dim() < 3 else keys.shape[-2]


def describe_layer(before: tuple, after: tuple) -> tuple[int, int | None, int]:
    """Elements per token, the window, and elements that do not grow."""
    (first, _, _), (last, window, positions) = before, after
    if window and positions:
        return last // positions, window, 0
    each = (last - first) // (PROMPTS[1] - PROMPTS[0])
    return each, None, max(0, last - each * PROMPTS[1])
