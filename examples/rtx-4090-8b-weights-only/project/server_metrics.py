"""What the server has done, in the text format that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


@dataclass
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def render(self, name: str) -> list[str]:
        lines, below = [], 0
        for bound, count in zip((*SECONDS, "+Inf"), self.counts, strict=True):
            below += count
            lines.append(label(f"{name}_bucket", "le", bound, below))
        return [*lines, f"{name}_sum {self.total}", f"{name}_count {below}"]


class Metrics:
    """Written by the event loop alone."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """By how they ended: stop, length, disconnected, refused_429, …"""
        self.prompt_tokens = self.new_tokens = 0
        self.first_token_seconds = Histogram()
        self.token_seconds = Histogram()
        self.request_seconds = Histogram()

    def render(self, running: int, waiting: int, peak_memory_gib: float) -> str:
        """Numbers since the start, and those of this moment."""
        lines = ["# HELP requests_total Requests by how they ended.", "# TYPE requests_total counter"]
        outcomes = sorted(self.requests.items())
        lines += [label("requests_total", "outcome", outcome, count) for outcome, count in outcomes]
        values = [
            ("prompt_tokens_total", "counter", "Tokens of the prompts that were read.", self.prompt_tokens),
            ("generated_tokens_total", "counter", "Tokens of the answers.", self.new_tokens),
            ("requests_running", "gauge", "Answers that are computed now.", running),
            ("requests_waiting", "gauge", "Requests that wait for others to end.", waiting),
            ("threads", "gauge", "Threads of this process that Python knows.", threading.active_count()),
            ("peak_memory_bytes", "gauge", "Most memory that was in use so far.", int(peak_memory_gib * 2**30)),
        ]
        for name, kind, text, value in values:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        histograms = [
            ("time_to_first_token_seconds", "From the request to the first token.", self.first_token_seconds),
            ("time_per_output_token_seconds", "Between tokens, a mean of each answer.", self.token_seconds),
            ("request_seconds", "From the request to the last byte of its answer.", self.request_seconds),
        ]
        for name, text, histogram in histograms:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram", *histogram.render(name)]
        return "\n".join(lines) + "\n"


def label(name: str, key: str, value: object, number: float) -> str:
    """A line with one label, in Prometheus' text form."""
    return name + "{" + f'{key}="{value}"' + "} " + str(number)
