"""The baseline as a process beside the server: asked in turn with it, so that both meet the same machine."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from sources import find_source

CONVERTING = Path(".venv-convert", "bin", "python")
"""Where weights are converted: the environment that has torch, if the serving one has not."""


class Baseline:
    """bench_baseline.py, running. ``loaded`` is what it said of itself; without torch there is none."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()
        self.loaded = self.read()

    def listen(self) -> None:
        """In a thread: a pipe is not read within a time. Behind the last line stands an empty one."""
        assert self.process.stdout, "started with a pipe"
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def read(self, seconds: float | None = None) -> dict | None:
        """``None`` where it has ended, in the middle of a line perhaps."""
        line = self.lines.get(timeout=seconds)
        return json.loads(line) if line.endswith("\n") else None

    def ask(self, prompt: str, new_tokens: int, seconds: float) -> dict | None:
        """``None`` where it took longer, or has ended, which is said: it holds the model beside the server."""
        assert self.process.stdin, "started with a pipe"
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"prompt": prompt, "new_tokens": new_tokens}) + "\n")
            self.process.stdin.flush()
        try:
            answer = self.read(max(0.0, seconds))
        except queue.Empty:
            return None
        if answer is None:
            ended = f"transformers.pipeline() ended with {self.process.wait()}"
            print(f"{ended}: what follows is measured without it", file=sys.stderr)
        return answer


@contextmanager
def start_baseline(here: Path, config: dict) -> Generator[Baseline]:
    python = here / CONVERTING if (here / CONVERTING).exists() else sys.executable
    command = [python, here / "bench_baseline.py", find_source(config, "model"), config.get("revision") or ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here) as process:
        asking = process.stdin
        assert asking, "started with a pipe"
        try:
            yield Baseline(process)
        finally:
            process.kill()
            with suppress(BrokenPipeError):  # what it was asked as it ended
                asking.close()
