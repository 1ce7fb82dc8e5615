"""bench.json, bench.svg, and the tables in the terminal."""

import json
import statistics
import sys
from pathlib import Path

from bench_figures import format_comparison, format_loads
from bench_plot import draw_bench
from bench_requests import Answer


def describe_alone(ours: list[Answer], theirs: list[dict], loaded: dict | None) -> dict:
    """Medians of single requests, and the baseline's in the same words."""
    ttft = statistics.median(answer.ttft for answer in ours)
    figures = {
        "decode_tokens_per_s": 1 / statistics.median(answer.tpot for answer in ours),
        "prefill_tokens_per_s": statistics.median(answer.prompt_tokens / answer.ttft for answer in ours),
        "ttft_s": ttft,
        "baseline_tokens_per_s": None,
        "baseline": None,
    }
    if loaded is not None and (counted := theirs[1:]):
        pauses = [(row["seconds"] - row["ttft_s"]) / max(1, row["new_tokens"] - 1) for row in counted]
        baseline = {
            "decode_tokens_per_s": 1 / statistics.median(pauses),
            "prefill_tokens_per_s": statistics.median(row["prompt_tokens"] / row["ttft_s"] for row in counted),
            "ttft_s": statistics.median(row["ttft_s"] for row in counted),
            "throughput_tokens_per_s": statistics.median(row["new_tokens"] / row["seconds"] for row in counted),
            "peak_memory_gib": counted[-1]["peak_memory_gib"],
            **loaded,
            "versions": counted[-1]["versions"],
        }
        figures |= {"baseline": baseline, "baseline_tokens_per_s": baseline["decode_tokens_per_s"]}
    return figures


def write_results(path: Path, figures: dict) -> None:
    """bench.json and bench.svg, each at once."""
    contents = {
        path: json.dumps(figures, indent=2, allow_nan=False) + "\n",
        path.with_suffix(".svg"): draw_bench(figures),
    }
    try:
        for file, text in contents.items():
            draft = file.with_name(f"{file.name}.tmp")
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)
    except OSError as error:  # what was measured is printed all the same
        print(f"no report written: {error}", file=sys.stderr)


def print_results(path: Path, figures: dict, planned: int) -> None:
    """``planned`` is the tokens of a prompt that the prediction is for."""
    started = f"loaded in {figures['load_s']:.3g} s, " if figures["load_s"] is not None else ""
    first = f"first request's first token after {figures['first_request_ttft_s']:.3g} s"
    lengths = f"{figures['prompt_tokens']} tokens of prompt, {figures['new_tokens']} of answer"
    print(f"{figures['engine']}, {figures['weights']}: {started}{first} (neither is counted below)")
    print(f"{lengths}, medians of {figures['repeats']}\n")
    print("\n".join([*format_comparison(figures), "", *format_loads(figures["loads"])]))
    if figures["predicted"] and figures["prompt_tokens"] != planned:
        print(f"\nPredicted is for prompts of {planned} tokens: compare without --quick and --prompt_tokens.")
    if figures["left_out"]:
        print(f"\nNo time for: {', '.join(figures['left_out'])}; --within gives more.")
    if figures["ended_early"]:
        print(f"\nNot all of it: {figures['ended_early']}.")
    print(f"\n{path} and {path.with_suffix('.svg').name} hold all of it")
