"""What generation keeps of a sequence, as the cache of a model on the meta device has it after two prompts: no values, only shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

PROMPTS = (256, 512)
"""tokens of the two: what differs between them grows with the tokens. Multiples of the 128 that DeepSeek-V4 makes one entry of"""


class Kept(NamedTuple):
    """One layer's cache: elements, the window that it keeps, the positions that it has, and the mean size of a head's key and value
    (``None``: a latent for all heads, or a state)."""

    elements: int
    window: int | None
    positions: int | None
    head: float | None


def measure_kept(model, layers: int, heads: int, head: int) -> tuple[list[list], int]:
    """The layers that attend as ``Attended`` has them, and elements that do not grow; nothing where the model cannot be run so.

    ``head``: the mean of a key's and a value's size where the cache does not show it. Layers that read the cache of another keep
    nothing.
    """
    try:
        short, long = (run_prompt(model, tokens) for tokens in PROMPTS)
    except Exception:  # whatever a model of any kind may raise without values: its cache is then assumed, and said
        return [], 0
    if not long or len(short) != len(long):
        return [], 0
    kinds: Counter[tuple[int, int, int | None]] = Counter()
    state = 0
    for before, after in zip(short, long, strict=True):
        each, window, constant = describe_layer(before, after)
        state += constant
        if each:
            kinds[int(heads * (after.head or head)), each, window] += 1
    if not kinds:
        return [], 0
    if layers > len(long):
        kinds[heads * head, 0, None] += layers - len(long)
    return [[count, *kind] for kind, count in kinds.items()], state


def run_prompt(model, tokens: int) -> list[Kept]:
    """Each layer's cache after a prompt."""
    import torch

    model.config.pad_token_id = None  # with one it looks for it among the tokens
    with torch.no_grad():
        output = model(input_ids=torch.ones((1, tokens), dtype=torch.long, device="meta"), use_cache=True)
    caches = output.past_key_values.layers
    return [
        Kept(sum(t.numel() for t in list_tensors(cache)), read_window(cache), *read_keys(cache)) for cache in caches
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


def read_keys(cache) -> tuple[int | None, float | None]:
    """Positions, and the mean size of a head's key and value where there are several heads of them."""
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if keys is None or keys.dim() < 4:
        return None, None
    several = values is not None and values.dim() == 4 and keys.shape[1] == values.shape[1] > 1
    return keys.shape[-2], (keys.shape[-1] + values.shape[-1]) / 2 if several else None


def describe_layer(before: Kept, after: Kept) -> tuple[int, int | None, int]:
    """Elements per token, the window, and elements that do not grow."""
    if after.window and after.positions:
        return after.elements // after.positions, after.window, 0
    each = (after.elements - before.elements) // (PROMPTS[1] - PROMPTS[0])
    return each, None, max(0, after.elements - each * PROMPTS[1])
