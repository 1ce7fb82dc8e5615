"""What people write in a table of runs, in the words that ``rows`` reads: ``spellings.toml`` and the names of perfgen's own choices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from generator.case.strategies import STRATEGIES

SPLIT = "tensor_pipeline_data"
"""one copy of the model is divided by the sizes of the row, and its copies are no more than that"""
PREFIXES = ("deepspeed-", "ds-", "accelerate-", "torch-")
"""of a strategy's library, which its name alone tells"""
UNSTATED = ("", "none")


@cache
def load_spellings() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Columns by the word that stands for them, by column; a fixed word stands for itself."""
    given = tomllib.loads(Path(__file__).with_name("spellings.toml").read_text(encoding="utf-8"))
    return {
        column: {fold(each[column]): {column: each[column]} for each in words.values() if column in each} | words
        for column, words in given.items()
    }


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
        written = stated.get(column, "")
        stands_for = spell_strategy(written, words) if column == "strategy" else words.get(fold(written), {})
        for other, value in stands_for.items():
            if other == column or row.get(other, "") in UNSTATED:
                row[other] = value
    return row


def spell_strategy(written: str, words: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Also with its library's name before it, and of several joined, such as fsdp2+tp: how the copies share, the rest is in the sizes."""
    word = fold(written)
    without = next((word.removeprefix(prefix) for prefix in PREFIXES if word.startswith(prefix)), word)
    if word in words or without in words:
        return words[word] if word in words else words[without]
    parts = re.split(r"[+x×/,&]", written)
    each = [spell_strategy(part, words) for part in parts] if len(parts) > 1 else []
    if not each or not all(each):
        return {}
    shared = [part for part in each if part["strategy"] != SPLIT and STRATEGIES[part["strategy"]].divides_states]
    joined = shared[0] if shared else {"strategy": SPLIT}
    return {column: value for column, value in joined.items() if column != "read_fills"}
