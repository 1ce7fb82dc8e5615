"""What every way to load data says to the DataLoader."""

from __future__ import annotations

from generator.case.case import Case
from generator.techniques.edits import Argument, make_argument


def list_pinning(case: Case) -> tuple[Argument, ...]:
    """Where the accelerator has no pinned memory, that none is asked for: DataLoader warns of it. On a CPU the
    Trainer asks for none by itself."""
    why = None if case.on_cpu or case.skeleton else case.explain_missing("pinned-memory")
    return (make_argument("dataloader_pin_memory", False, why),) if why else ()
