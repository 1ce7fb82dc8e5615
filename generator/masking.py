"""The leaf of the templates that hides secrets, run as it stands: perfgen and its projects hide the same."""

from __future__ import annotations

from types import ModuleType

from generator.bundle import ROOT


def load_masking() -> ModuleType:
    path = ROOT / "templates" / "fragments" / "masking.py"
    module = ModuleType(path.stem)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


LEAF = load_masking()
mask_secrets, mask_messages = LEAF.mask_secrets, LEAF.mask_messages
