"""infer.json: what was asked and answered, and what that took."""

import json
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

from machine import peak_memory

PACKAGES = ("torch", "transformers")


def write_report(
    path: Path, *, prompt: str, answer: str, prompt_tokens: int, new_tokens: int, seconds: list[float], **more
) -> None:
    """``seconds`` of each call. The first is kept apart where there are others: it warms up and compiles."""
    tokens = new_tokens or prompt_tokens  # a classifier only reads
    steady_seconds = statistics.median(seconds[1:] or seconds)
    report = {
        "schema": 1,
        "prompt": prompt,
        "answer": answer,
        **more,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "seconds": steady_seconds,
        "tokens_per_second": tokens / steady_seconds,
        "first_call_seconds": seconds[0],
        "calls": len(seconds),
        **peak_memory(),
        "versions": {name: version(name) for name in PACKAGES},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:  # the answer stands without it
        print(f"no report written: {error}", file=sys.stderr)
    speed, peak = tokens / steady_seconds, report["peak_memory_gib"]
    print(f"{tokens} tokens in {steady_seconds:.3g} s: {speed:.1f} tokens/s, {peak:.2f} GiB at peak")
