"""Names that people know from guides and other tools, and under which perfgen decides nothing (``elsewhere.toml``)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What is called so: why it is no technique, and which techniques do it here (``here``, their ids)."""

    names: tuple[str, ...]
    why: str
    source: str
    here: tuple[str, ...] = ()
    retired: bool = False

    def describe(self) -> str:
        why = f"retired: {self.why}" if self.retired else self.why
        return f"{why}; here: {', '.join(self.here)}" if self.here else why


def load_named() -> tuple[Named, ...]:
    text = resources.files("generator.techniques").joinpath("elsewhere.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["named"]
    return tuple(Named(**row | {"names": tuple(row["names"]), "here": tuple(row.get("here", ()))}) for row in rows)


def find_named(name: str) -> Named | None:
    """``name`` in any case, with blanks or underscores for its hyphens."""
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    return next((row for row in load_named() if wanted in row.names), None)
