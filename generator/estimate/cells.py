"""Numbers of a row's columns, and what makes a row one that cannot be costed."""

from __future__ import annotations

import re


class Uncostable(Exception):
    """The row cannot be costed; the message says why."""


WHOLE = (
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "gpus_per_node",
    "nodes",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "n_experts",
    "experts_per_token",
)
"""Counts of which no published table has a mean; lengths, batches and memory may be one."""


TOKENS = ("seq_len", "in_len", "out_len")


def parse_number(text: str, *, in_tokens: bool) -> float:
    """Also with commas between thousands, and lengths in k, which are multiples of 1,024: 4k, as papers write 4,096. Raises ``ValueError``."""
    written = text.strip()
    if in_tokens and re.fullmatch(r"[\d.]+\s*[kK]", written):
        return float(written[:-1]) * 1024
    return float(written.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", written) else written)


def read_count(get, name: str, default: int | None = None, least: float = 0.5) -> int:
    """A positive whole number of the row. Raises ``Uncostable``."""
    text = get(name, "")
    if not text:
        if default is None:
            raise Uncostable(f"{name} is not stated")
        return default
    try:
        number = parse_number(text, in_tokens=name in TOKENS)
    except ValueError:
        raise Uncostable(f"{name} is not a number: {text!r}") from None
    if not least <= number < 1e15:
        raise Uncostable(f"{name} is out of range: {text!r}")
    if name in WHOLE and number != int(number):
        raise Uncostable(f"{name} is no whole number: {text!r}")
    return max(1, round(number))


def read_params(get) -> float:
    """The stated parameter count, 0 where there is none."""
    text = get("params_b", "")
    try:
        number = float(text or 0)
    except ValueError:
        raise Uncostable(f"params_b is not a number: {text!r}") from None
    if not 0 <= number < 1e6:
        raise Uncostable(f"params_b is out of range: {text!r}")
    return number * 1e9
