"""Where the templates lie: beside the packages in a checkout, inside the package in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGED = Path(__file__).with_name("_bundle")
ROOT = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent
"""Holds copier.yml and templates/."""


def find_sample_file(name: str) -> Path:
    """A file of the embedded sample (a small model's config.json, text.txt)."""
    (folder,) = (ROOT / "templates" / "project").glob("*sample*")
    return folder / name
