"""What people write in a table of runs, in the words that ``rows`` reads: ``spellings.toml`` and the names of perfgen's own choices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PREFIXES = ("deepspeed-", "ds-", "accelerate-", "torch-")
"""of a strategy's library, which its name alone tells"""
UNSTATED = ("", "none")


@cache
def load_spellings() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Columns by the word that stands for them, by column."""
    return tomllib.loads(Path(__file__).with_name("spellings.toml").read_text(encoding="utf-8"))


def fold(word: str) -> str:
    """Letter case, blanks and what joins words make no difference: ``ZeRO_3`` is ``zero-3``."""
    return re.sub(r"[\s_-]+", "-", word.strip().casefold())


def spell_row(stated: Mapping[str, str]) -> dict[str, str]:
    """The row with its words replaced by the columns that they stand for. A word of one column says of another only what that one leaves
    open: ``qlora`` with ``quant`` fp8 is LoRA of 8 bits."""
    row = dict(stated)
    for column, words in load_spellings().items():
        if row.get(column) != stated.get(column):
            continue  # the word of another column has said it
        word = _find_word(column, stated.get(column, ""), words)
        fixed = {fold(each[column]): each[column] for each in words.values() if column in each}
        stands_for = words.get(word) or ({column: fixed[word]} if word in fixed else {})
        for other, value in stands_for.items():
            if other == column or row.get(other, "") in UNSTATED:
                row[other] = value
    return row


def _find_word(column: str, stated: str, words: Mapping[str, object]) -> str:
    word = fold(stated)
    if column != "strategy" or word in words:
        return word
    for prefix in PREFIXES:
        if word.startswith(prefix):
            return word.removeprefix(prefix)
    return word
