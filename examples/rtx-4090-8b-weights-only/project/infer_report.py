"""infer.json: what was asked and answered, and what that took."""

import json
import statistics
import sys
from importlib.metadata import version
from operator import truediv
from pathlib import Path

from machine import peak_memory

PACKAGES = ("torch", "transformers")


def write_report(
    path: Path,
    *,
    prompt: str,
    answer: str,
    prompt_tokens: int,
    new_tokens: list[int],
    first_call_seconds: float,
    seconds: list[float],
    as_json: bool = False,
    packages: tuple[str, ...] = PACKAGES,
    **more,
) -> None:
    """``new_tokens`` and ``seconds`` of each call after the first, which warms up and compiles and is kept apart."""
    counts = [tokens or prompt_tokens for tokens in new_tokens]  # a classifier only reads
    report = {
        "schema": 1,
        "prompt": prompt,
        "answer": answer,
        **more,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens[-1],
        "seconds": statistics.median(seconds),
        "tokens_per_second": statistics.median(map(truediv, counts, seconds)),
        "first_call_seconds": first_call_seconds,
        "calls": len(seconds),
        **peak_memory(),
        "versions": {name: version(name) for name in packages},
    }
    text = json.dumps(report, indent=2, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:  # the answer stands without it
        print(f"no report written: {error}", file=sys.stderr)
    if as_json:
        print(text)
        return
    speed, peak = report["tokens_per_second"], report["peak_memory_gib"]
    print(
        f"{counts[-1]} tokens in {report['seconds']:.3g} s: {speed:.1f} tokens/s, {peak:.2f} GiB at peak; "
        f"warming up took {first_call_seconds:.3g} s before"
    )
