"""bench.svg: throughput against concurrency, and time to first token against arrivals. Readable on light and dark."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 44
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.axis{stroke:#8888;stroke-width:1}.title{font-weight:600}"
    ".a{stroke:#2f6fde;fill:#2f6fde}.b{stroke:#c8553d;fill:#c8553d}.c{stroke:#7a7a7a;fill:#7a7a7a}"
    "polyline{fill:none!important;stroke-width:2}text.a,text.b,text.c{stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.a{stroke:#7aa7ff;fill:#7aa7ff}"
    ".b{stroke:#ff9a80;fill:#ff9a80}.c{stroke:#aaa;fill:#aaa}}"
)

Points = Sequence[tuple[float, float]]


def draw_bench(figures: dict) -> str:
    """Both panels beside each other."""
    closed = [row for row in figures["loads"] if row["kind"] == "closed"]
    arrived = [row for row in figures["loads"] if row["kind"] == "open" and row["ttft_s"]]
    speed = [(row["users"], row["throughput_tokens_per_s"]) for row in closed]
    series = {"a measured": speed}
    if predicted := figures["predicted"].get("throughput_tokens_per_s"):
        series["c predicted"] = [(max(row["users"] for row in closed), predicted)] if closed else []
    if baseline := figures["baseline_tokens_per_s"]:
        series["b pipeline()"] = [(users, baseline) for users, _ in speed]
    panels = [draw_panel("tokens/s against requests at once", "requests at once", series, 0)]
    delays = {
        f"{mark} {name}": [(row["rate"], row["ttft_s"][name]) for row in arrived]
        for mark, name in (("a", "p50"), ("b", "p99"))
    }
    panels.append(draw_panel("s to the first token against arrivals", "requests per s", delays, WIDTH))
    body = "\n".join(panels)
    size = f'viewBox="0 0 {2 * WIDTH} {HEIGHT}" width="{2 * WIDTH}" height="{HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>\n{body}\n</svg>\n'


def draw_panel(title: str, below: str, series: Mapping[str, Points], offset: int) -> str:
    """``series`` by class and name: a line through its points, each a dot. Across stands what was tried, evenly."""
    tried = sorted({x for part in series.values() for x, _ in part})
    top = choose_end(max((y for part in series.values() for _, y in part), default=1.0))

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (tried.index(x) + 0.5) / len(tried) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), place_up(y / top)

    parts = [f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = place_up(share)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{top * share:.4g}</text>')
    for x in tried:
        parts.append(f'<text x="{place(x, 0)[0]}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:.3g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(below)}</text>')
    for number, (name, line) in enumerate(series.items()):
        mark, _, label = name.partition(" ")
        placed = [place(*point) for point in sorted(line)]
        if len(placed) > 1:
            corners = " ".join(f"{x},{y}" for x, y in placed)
            parts.append(f'<polyline class="{mark}" points="{corners}"/>')
        parts += [f'<circle class="{mark}" cx="{x}" cy="{y}" r="3"/>' for x, y in placed]
        legend = f'x="{LEFT + 8}" y="{TOP + 14 + 16 * number}"'  # where curves that rise are not
        parts.append(f'<text class="{mark}" {legend}>{escape(label)}</text>')
    return f'<g transform="translate({offset},0)">\n' + "\n".join(parts) + "\n</g>"


def place_up(share: float) -> float:
    return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def choose_end(largest: float) -> float:
    """The end of an axis: a round number above all values, of which a quarter is round too."""
    if largest <= 0:
        return 1.0
    unit = 10 ** math.floor(math.log10(largest))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= largest * 1.02 or step == 10)
