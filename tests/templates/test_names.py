"""No template knows a technique or a strategy by its name: it prints what the plan says, at its place."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest
from making import H100, case

from generator.techniques.base import list_axes

ROOT = Path(__file__).resolve().parents[2] / "templates"
TEMPLATES = sorted(path for path in ROOT.rglob("*") if path.suffix in (".jinja", ".md"))
JINJA = {"none", "default"}
"""Words of Jinja itself, outside of strings: a literal and a filter."""
OTHERS = {"transformers", "engine", "context"}
"""Names of techniques that are words of their own: the library that every project imports, and what a plan says of its server."""


def list_names() -> set[str]:
    """Of all techniques, and of all strategies that one of them divides the work by, also without their stage."""
    techniques = [technique for axis in list_axes() for technique in axis.members]
    of = case(H100, devices=8, nodes=2)
    strategies = {layout.strategy for technique in techniques for layout in technique.layouts(of) or ()}
    assert {"ddp", "zero3", "fsdp_full_shard", "hsdp"} <= strategies
    stems = {re.sub(r"\d$|_.*", "", strategy) for strategy in strategies}
    return {technique.name for technique in techniques} | strategies | stems


def list_words(source: str) -> set[str]:
    """Every word in the expressions and statements of a template: names, and the words inside of strings."""
    words: set[str] = set()
    for _, kind, text in jinja2.Environment().lexer.tokeniter(source, None):
        if kind == "name":
            words |= {text} - JINJA
        elif kind == "string":
            words |= set(re.findall(r"[\w-]+", text))
    return words


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name[-40:])
def test_no_technique_is_named(path):
    words = list_words(path.read_text(encoding="utf-8")) | list_words(str(path.relative_to(ROOT)))
    assert not words & (list_names() - OTHERS)


def test_a_name_would_be_seen():
    seen = list_words('{% if plan.choice.x == "zero3" and not y.lora %}ddp{% endif %}{{ "a bf16-pure b" if none }}')
    assert seen & list_names() == {"zero3", "lora", "bf16-pure"}
