"""Which value of a field of ``Execution`` costs no more time than any other, all else equal: what lets a search leave out
whole families of configurations without costing them. A test holds every search to the answer of plain enumeration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from generator.cost.execution import CAPTURED


def rank_in_order(*fastest_first: Any) -> Callable[[Any], Any]:
    return lambda value: fastest_first.index(value) if value in fastest_first else len(fastest_first)


def rank_equal(value: Any) -> int:
    return 0


FASTEST: Mapping[str, Callable[[Any], Any]] = {
    "checkpoint_every": lambda every: 1 / every if every else 0.0,  # none, then as few blocks as possible
    "checkpoint_offload": rank_in_order(False, True),
    "checkpoint_operators": rank_in_order(True, False),  # what is kept is not computed again
    "tile_tokens": bool,
    "loss_kernel": rank_in_order("fused", "plain", "chunked", "tiled"),
    "fused_kernels": rank_in_order("liger", "none"),
    "compile": lambda mode: 2 if mode is None else 1 if mode not in CAPTURED else 0,
    "optimizer": lambda kind: kind.step_passes,
    "optimizer_fused": rank_in_order(True, False),
    "dataloader_workers": lambda workers: workers == 0,
    "pin_memory": rank_equal,
    "length_shares": lambda shares: sum(shares) / len(shares) if shares else 1.0,
    "padding_left": float,
    "row_order": rank_equal,  # CostModel.least_parts bounds what is computed in every order
    "sorted_batches": rank_equal,
    "trained_share": float,
    "shared_tokens": lambda tokens: -tokens,
    "padding_free": rank_equal,
    "rows": rank_in_order(
        "sdpa", "varlen", "batch"
    ),  # a CPU attends in float32 to each by itself, sooner where it is short
}
"""A rank by field, the lowest is fastest. A field that is not here (attention: which kernel wins depends on length and device)
must be decided before anything is bounded."""

NEUTRAL = frozenset(
    {
        "compile",
        "dataloader_workers",
        "pin_memory",
        "length_shares",
        "padding_left",
        "row_order",
        "sorted_batches",
        "padding_free",
        "rows",
        "trained_share",
        "shared_tokens",
    }
)
"""Fields that device memory does not depend on, or (compile, with a quantizer) least at their fastest value."""


def choose_fastest(field: str, values: list[Any]) -> Any:
    return min(values, key=FASTEST[field])
