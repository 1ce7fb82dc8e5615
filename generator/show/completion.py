"""What a shell completes: models, devices, pins, techniques. From names of files and single lines; nothing large is imported."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

if TYPE_CHECKING:
    import click

GENERATOR = Path(__file__).resolve().parents[1]
COUNTS = re.compile(r"(?:\d{1,9}x){0,2}")
TABLE = re.compile(r'^\[(?:"([^"]+)"|([\w-]+))\]$', re.MULTILINE | re.ASCII)
"""A model's name in the catalogue of models: a table that is inside of no other."""
SAME = re.compile(r"^same = \[([^\]]*)\]", re.MULTILINE)
"""Other ids of the same sizes, as generator/model/catalog.py reads them."""


def complete_model(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Hub ids whose sizes are known, and the shell's own files and folders."""
    return [CompletionItem(typed, type="file"), *select(list_models(), typed)]  # bash forgets what stands before it


def complete_hardware(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Devices behind a count, cloud instances, and the shell's own files."""
    from hwdetect import catalog
    from hwdetect.cloud import list_instance_names

    match = COUNTS.match(typed)
    counts = match.group() if match else ""
    named = typed[len(counts) :].lower()
    names = [*catalog.list_ids(), *list_instance_names(), *(() if counts else ("cpu", "portable"))]
    if "-mig" in named:
        names = list_mig_names(named.partition("-mig")[0])
    items = [CompletionItem(counts + name) for name in names if name.lower().startswith(named)]
    return [CompletionItem(typed, type="file"), *items]


def complete_device(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    from hwdetect import catalog

    return select(catalog.list_ids(), typed.lower())


def complete_technique(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """AXIS=NAME."""
    return select(list_techniques(), typed)


def select(names: tuple[str, ...], typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(typed)]


@cache
def list_models() -> tuple[str, ...]:
    """By the tables of generator/model/published/<owner>.toml, and what has the sizes of one."""
    files = sorted((GENERATOR / "model" / "published").glob("[!_]*.toml"))
    ids: list[str] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        names = [match[1] or match[2] for match in TABLE.finditer(text)]
        names += [name for listed in SAME.findall(text) for name in re.findall(r'"([^"]+)"', listed)]
        ids += [name.removeprefix("/") if "/" in name else f"{file.stem}/{name}" for name in names]
    return tuple(ids)


def list_techniques() -> tuple[str, ...]:
    """By the names of the files that they stand in."""
    files = sorted((GENERATOR / "techniques").glob("*/[!_]*.py"))
    return tuple(f"{file.parent.name}={file.stem}".replace("_", "-") for file in files)


def list_mig_names(board: str) -> list[str]:
    from hwdetect import catalog
    from hwdetect.mig import list_profiles

    known = catalog.resolve(board)
    return [f"{board}-mig-{profile.name}" for profile in list_profiles(catalog.load(known))] if known else []


@add_completion_class
class JoiningBash(BashComplete):
    """Bash takes ``optimizer=adamw`` for three words, and puts what is completed in the place of the last."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, typed = super().get_completion_args()
        self.before = ""
        if typed in ("=", ":") and args:
            self.before, typed = args.pop() + typed, ""
        elif len(args) > 1 and args[-1] in ("=", ":"):
            sign = args.pop()
            self.before = args.pop() + sign
        return args, self.before + typed

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self.before)}"
