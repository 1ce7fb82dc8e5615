"""The part of report.html that the smoke run fills in; the page itself is a template."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from generator.inputs.json_files import replace_file

SECTION = re.compile(r"(<!-- smoke:begin -->\n).*?(<!-- smoke:end -->)", re.DOTALL)


def add_smoke(page: Path, result: dict) -> None:
    """Replace the section between the marks. A page that the user removed or rewrote is left alone."""
    if not page.is_file():
        return
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    body = draw_section(result)
    replace_file(page, SECTION.sub(lambda m: m[1] + body + m[2], text))


def draw_section(result: dict) -> str:
    rows = "".join(draw_comparison(row) for row in result["comparison"])
    table = (
        f"<table>\n<tr><th></th><th></th><th>predicted</th><th>measured</th><th>ratio</th></tr>\n{rows}</table>\n"
        if rows
        else ""
    )
    return table + draw_losses(result["losses"]) + f"<p>Answer: <code>{escape(result['answer'])}</code></p>\n"


def draw_comparison(row: dict) -> str:
    top = max(row["predicted"], row["measured"]) or 1.0
    bars = "".join(
        f'<rect y="{y}" width="{value / top * 100:.2f}" height="7" fill="{color}"/>'
        for y, value, color in ((0, row["predicted"], "#97bbf5"), (9, row["measured"], "#4269d0"))
    )
    svg = f'<svg viewBox="0 0 100 16" width="100%" height="16" preserveAspectRatio="none">{bars}</svg>'
    ratio = f"{row['ratio']:.2f}" if row["ratio"] else ""
    return (
        f'<tr><td>{escape(row["what"])}</td><td style="width:40%">{svg}</td>'
        f'<td class="number">{row["predicted"]:.4g} {escape(row["unit"])}</td>'
        f'<td class="number">{row["measured"]:.4g} {escape(row["unit"])}</td><td class="number">{ratio}</td></tr>\n'
    )


def draw_losses(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    points = " ".join(
        f"{i / (len(values) - 1) * 300:.1f},{55 - (value - low) / spread * 50:.1f}" for i, value in enumerate(values)
    )
    return (
        f'<svg viewBox="0 0 300 60" width="300" height="60" role="img"><title>loss</title>'
        f'<polyline points="{points}" fill="none" stroke="#4269d0" stroke-width="2"/></svg>'
        f"<p>Loss {values[0]:.3f} to {values[-1]:.3f} in {len(values)} steps.</p>\n"
    )
