"""What is measured, in numbers: quantiles of many requests, rows of a load, and the table that compares."""

from collections.abc import Sequence

from bench_requests import CUT, Answer

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def find_quantile(values: Sequence[float], share: float) -> float:
    """Between neighbours in proportion, as most programs do."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def describe_quantiles(values: Sequence[float]) -> dict[str, float] | None:
    return {name: find_quantile(values, share) for name, share in QUANTILES.items()} if values else None


def describe_load(answers: Sequence[Answer], seconds: float, **how) -> dict:
    """A row of bench.json: what so many requests got in so many seconds, and how many got nothing. Those that the end
    of the measurement met under way are counted apart."""
    cut = sum(answer.problem == CUT for answer in answers)
    answers = [answer for answer in answers if answer.problem != CUT]
    good = [answer for answer in answers if answer.problem is None]
    problems = [answer.problem for answer in answers if answer.problem not in (None, "refused")]
    return {
        **how,
        "requests": len(answers),
        "refused": sum(answer.problem == "refused" for answer in answers),
        "failed": len(problems),
        "first_failure": problems[0] if problems else None,
        "cut": cut,
        "seconds": seconds,
        "requests_per_s": len(good) / seconds,
        "throughput_tokens_per_s": sum(answer.tokens for answer in good) / seconds,
        "ttft_s": describe_quantiles([answer.ttft for answer in good]),
        "tpot_s": describe_quantiles([answer.tpot for answer in good if answer.tokens > 1]),
    }


COMPARED = {
    "decode_tokens_per_s": ("decode, one request", "tokens/s"),
    "prefill_tokens_per_s": ("prefill", "tokens/s"),
    "ttft_s": ("time to first token", "s"),
    "throughput_tokens_per_s": ("throughput", "tokens/s"),
    "peak_memory_gib": ("peak memory", "GiB"),
}


def format_comparison(figures: dict) -> list[str]:
    """Predicted against measured, and the baseline where there is one."""
    predicted, baseline = figures["predicted"], figures["baseline"] or {}
    lines = [f"{'':22}{'measured':>12}{'predicted':>12}{'ratio':>8}{'pipeline()':>12}"]
    for name, (title, unit) in COMPARED.items():
        cells = figures[name], predicted.get(name), baseline.get(name)
        ratio = f"{cells[0] / cells[1]:.2f}" if cells[0] and cells[1] else ""
        numbers = ["" if value is None else f"{value:.4g}" for value in cells]
        lines.append(f"{title:22}{numbers[0]:>12}{numbers[1]:>12}{ratio:>8}{numbers[2]:>12}  {unit}")
    return lines


def format_loads(rows: Sequence[dict]) -> list[str]:
    """A line for each load."""
    lines = [f"{'load':22}{'tokens/s':>12}{'TTFT p50':>12}{'p99':>8}{'per token':>12}{'p99':>8}  s, refused"]
    for row in rows:
        what = f"{row['users']} at once" if row["kind"] == "closed" else f"{row['rate']:.3g} arrive per s"
        times = [(row[name] or {}).get(share) for name in ("ttft_s", "tpot_s") for share in ("p50", "p99")]
        cells = ["-" if value is None else f"{value:.3g}" for value in times]
        lost = f"{row['refused']} of {row['requests']}" + (f", {row['failed']} failed" if row["failed"] else "")
        speed = f"{row['throughput_tokens_per_s']:.4g}"
        lines.append(f"{what:22}{speed:>12}{cells[0]:>12}{cells[1]:>8}{cells[2]:>12}{cells[3]:>8}  {lost}")
    return lines
