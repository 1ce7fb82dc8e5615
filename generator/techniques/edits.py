"""What a technique writes into the project: values and places, never template text.

Two techniques that set one key is an error (``EditConflict``), so the merged edits never depend on order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

LISTS = ("imports", "requirements", "fragments", "callbacks")


class EditConflict(Exception):
    """Two techniques set the same key."""


@dataclass(frozen=True, slots=True)
class Code:
    """Python source to be emitted as it stands (everything else is emitted as its literal)."""

    text: str


@dataclass(frozen=True, slots=True)
class Argument:
    """A keyword argument: its name, its value as Python source, and the short reason beside it."""

    name: str
    code: str
    why: str = ""


def make_argument(name: str, value: object, why: str = "") -> Argument:
    """``value`` as a Python literal with double quotes; ``Code`` as it stands."""
    return Argument(name, value.text if isinstance(value, Code) else write_literal(value), why)


def write_literal(value: object) -> str:
    """Python source of a plain value, quoted the way ruff formats it."""
    if isinstance(value, str):
        text = repr(value)
        return '"' + text[1:-1] + '"' if text[0] == "'" and '"' not in text else text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write_literal(k)}: {write_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(write_literal(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Where a technique may write.

    ``imports`` are whole import lines of train.py; ``setup`` statements before the model is loaded, ``after_model``
    statements after it; ``model_arguments`` go to ``from_pretrained``, ``training_arguments`` to ``TrainingArguments``
    (or TRL's subclass), ``trainer_arguments`` to the trainer, ``callbacks`` are expressions in its callback list, and
    ``after_trainer`` are statements after it, before it makes its optimizer.
    ``fragments`` name files of ``templates/fragments`` whose functions are placed above ``main``.
    ``infer_*`` are the same places of infer.py. ``environment`` is exported by the launcher and the Dockerfile,
    ``launch`` are words before ``python``, ``requirements`` are distributions of ``stacks.toml``.
    ``launcher`` is the program, with its words, that starts train.py in several processes in the place of ``python``.
    ``deepspeed`` and ``accelerate`` are settings of deepspeed.json and accelerate.yaml, by dotted key; a project has the
    file if any technique writes into it.
    """

    imports: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    model_arguments: tuple[Argument, ...] = ()
    after_model: tuple[str, ...] = ()
    training_arguments: tuple[Argument, ...] = ()
    trainer_arguments: tuple[Argument, ...] = ()
    callbacks: tuple[str, ...] = ()
    after_trainer: tuple[str, ...] = ()
    fragments: tuple[str, ...] = ()
    infer_imports: tuple[str, ...] = ()
    infer_setup: tuple[str, ...] = ()
    infer_model_arguments: tuple[Argument, ...] = ()
    infer_after_model: tuple[str, ...] = ()
    infer_generate_arguments: tuple[Argument, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    launch: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    deepspeed: tuple[tuple[str, Any], ...] = ()
    accelerate: tuple[tuple[str, Any], ...] = ()
    requirements: tuple[str, ...] = ()


def merge_edits(parts: list[tuple[str, Edits]]) -> Edits:
    """The union of the edits of several techniques, each named; sorted, so that order of discovery does not show."""
    merged: dict[str, tuple] = {}
    for field in fields(Edits):
        name = field.name
        items = [(who, item) for who, edits in parts for item in getattr(edits, name)]
        if name.endswith("arguments") or name in ("environment", "deepspeed", "accelerate"):
            merged[name] = _merge_keyed(name, items)
        elif name.endswith("imports") or name in LISTS:
            merged[name] = tuple(sorted({item for _, item in items}))
        else:
            merged[name] = tuple(item for _, item in items)
    return Edits(**merged)


def _merge_keyed(place: str, items: list[tuple[str, Any]]) -> tuple:
    owner: dict[str, str] = {}
    for who, item in items:
        key = item.name if isinstance(item, Argument) else item[0]
        if key in owner:
            raise EditConflict(f"{place}: {owner[key]} and {who} both set {key}")
        owner[key] = who
    return tuple(item for _, item in items)
