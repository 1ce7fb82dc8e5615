"""Where the templates lie: beside the packages in a checkout, inside the package in an installed wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

_PACKAGED = Path(__file__).with_name("_bundle")
ROOT = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent
"""Holds templates/, copier.yml and portable.yml."""


def find_sample_file(name: str) -> Path:
    """A file of the embedded sample (a small model's config.json, text.txt)."""
    (folder,) = (ROOT / "templates" / "project").glob("*sample*")
    return folder / name


def copy_template(folder: Path) -> None:
    """The template of Copier into an existing folder: ``templates/``, ``copier.yml`` and what it includes."""
    shutil.copytree(ROOT / "templates", folder / "templates")
    for name in ("copier.yml", "portable.yml"):
        shutil.copyfile(ROOT / name, folder / name)
