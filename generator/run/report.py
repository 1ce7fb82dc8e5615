"""The part of report.html that the smoke run fills in; the page itself is a template."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from pathlib import Path

from generator.errors import SourceError
from generator.inputs.json_files import replace_file
from generator.inputs.leaves import load_finished_runs
from generator.run.figures import RunFigures, read_figures
from generator.run.plan_file import read_plan

SECTION = re.compile(r"(<!-- smoke:begin -->\n).*?(<!-- smoke:end -->)", re.DOTALL)
RUN_SECTION = re.compile(r"(<!-- run:begin -->\n).*?(<!-- run:end -->)", re.DOTALL)
METRICS = {"loss": "loss", "perplexity": "perplexity", "accuracy": "accuracy", "macro_f1": "macro F1"}


def add_smoke(page: Path, result: dict) -> None:
    """Replace the section between the marks. A page that the user removed or rewrote is left alone."""
    fill_section(page, SECTION, draw_section(result))


def report_run(folder: Path, say: Callable[[str], None], asked: Path | None = None) -> None:
    """The `perfgen report` command: run.json of a training into report.html, of the last finished one if none is ``asked`` for.

    Raises ``SourceError``.
    """
    usual = read_plan(folder, "config")["config"].get("output_dir", "runs")
    output = asked or load_finished_runs().find_run(folder, usual) or folder / usual
    page = folder / "report.html"
    if not (output / "run.json").is_file():
        raise SourceError(f"{output} holds no finished run", "make train first, or give --run FOLDER")
    if not page.is_file() or not RUN_SECTION.search(page.read_text(encoding="utf-8", errors="replace")):
        raise SourceError(
            f"{page} has no place for a run: it was removed or rewritten", "perfgen init writes a new one"
        )
    run = read_figures(RunFigures, output / "run.json", "train")
    add_run(page, run)
    for row in run.evaluations:
        metrics = "  ".join(
            f"{name} {getattr(row, key):.4g}" for key, name in METRICS.items() if getattr(row, key) is not None
        )
        say(f"step {row.step}: {metrics}{'  (kept)' if row.step == run.kept_step else ''}")
    say(f"report of {output}: {page}")


def add_run(page: Path, run: RunFigures) -> None:
    """The same with what the training said of itself: its evaluations, its confusion table, its answers."""
    fill_section(page, RUN_SECTION, draw_run(run))


def fill_section(page: Path, section: re.Pattern, body: str) -> None:
    if not page.is_file():
        return
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    replace_file(page, section.sub(lambda m: m[1] + body + m[2], text))


def draw_run(run: RunFigures) -> str:
    losses = draw_losses(run.losses)
    if not run.evaluations:
        return f"{losses}<p>Nothing was held out.</p>\n"
    return losses + draw_evaluations(run) + draw_confusion(run) + draw_mistakes(run) + draw_answers(run)


def draw_evaluations(run: RunFigures) -> str:
    names = {key: name for key, name in METRICS.items() if getattr(run.evaluations[0], key) is not None}
    head = "".join(f"<th>{name}</th>" for name in names.values())
    rows = "".join(
        f"<tr><td>{row.step}{' (kept)' if row.step == run.kept_step else ''}</td>"
        + "".join(f'<td class="number">{format_metric(getattr(row, key))}</td>' for key in names)
        + "</tr>\n"
        for row in run.evaluations
    )
    curve = draw_losses([row.loss for row in run.evaluations], "evaluations")
    return f"{curve}<table>\n<tr><th>after step</th>{head}</tr>\n{rows}</table>\n<p>On {run.eval_rows} held-out rows.</p>\n"


def format_metric(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def draw_confusion(run: RunFigures) -> str:
    if run.confusion is None:
        return ""
    names = [escape(name) for name in run.confusion.labels]
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = "".join(
        f"<tr><td>{name}</td>" + "".join(f'<td class="number">{count}</td>' for count in counts) + "</tr>\n"
        for name, counts in zip(names, run.confusion.counts, strict=True)
    )
    return f"<table>\n<tr><th>is \\ was taken for</th>{head}</tr>\n{lines}</table>\n"


def draw_mistakes(run: RunFigures) -> str:
    if not run.mistakes:
        return ""
    rows = "".join(
        f'<tr><td>{escape(m.label)}</td><td>{escape(m.answer)}</td><td class="number">{m.count}</td></tr>\n'
        for m in run.mistakes
    )
    return f"<table>\n<tr><th>is</th><th>was taken for</th><th>times</th></tr>\n{rows}</table>\n"


def draw_answers(run: RunFigures) -> str:
    if not run.answers:
        return ""
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{escape(text or '')}</td>" for text in (a.prompt, a.expected, a.before, a.after))
        + "</tr>\n"
        for a in run.answers
    )
    return f"<table>\n<tr><th>prompt</th><th>in the data</th><th>before</th><th>after</th></tr>\n{rows}</table>\n"


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
    low, high = row.get("p10"), row.get("p90")  # of no smoke run before they were predicted
    between = "" if low is None or high is None else f" ({low:.4g}–{high:.4g})"
    return (
        f'<tr><td>{escape(row["what"])}</td><td style="width:40%">{svg}</td>'
        f'<td class="number">{row["predicted"]:.4g}{between} {escape(row["unit"])}</td>'
        f'<td class="number">{row["measured"]:.4g} {escape(row["unit"])}</td><td class="number">{ratio}</td></tr>\n'
    )


def draw_losses(values: list[float], unit: str = "steps") -> str:
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
        f"<p>Loss {values[0]:.3f} to {values[-1]:.3f} in {len(values)} {unit}.</p>\n"
    )
