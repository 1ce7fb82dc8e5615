"""Running one probe under the common deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from hwdetect.probes.notes import Notes

T = TypeVar("T")


class ProbeRun(Generic[T]):
    """One probe's result, with its own notes. On a live machine it runs in a thread that is left behind if it hangs."""

    def __init__(self, name: str, probe: Callable[[Notes], T], empty: T):
        self.name, self.empty, self.notes, self.done = name, empty, Notes(), False
        self.value: T = empty
        self.seconds = 0.0
        self._probe = probe
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        started = time.monotonic()
        self.value = self._probe(self.notes)
        self.seconds = time.monotonic() - started
        self.done = True

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name=f"hwdetect-{self.name}", daemon=True)
        self._thread.start()

    def finish(self, ends: float, deadline_s: float) -> None:
        assert self._thread is not None
        self._thread.join(timeout=max(0.0, ends - time.monotonic()))
        if not self.done:
            self.value, self.notes = self.empty, Notes()
            hangs = self._thread.is_alive()
            why = f"no answer within {deadline_s:.1f} s" if hangs else "this probe failed: its traceback was printed"
            self.notes.add(self.name, "deadline" if hangs else "hwdetect", why)
