"""A plan as a person wants to read it in a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from generator.emit.plan_document import (
    EstimateRecord,
    GoalRecord,
    LayoutRecord,
    OfferRecord,
    PlanDocument,
    RunnerUpRecord,
)
from generator.emit.plan_json import to_json
from generator.emit.run_total import name_hours
from generator.errors import escape_control
from generator.figures import format_figure, format_rate
from generator.progress import is_quiet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


PIPED_COLUMNS = 120
"""in a file or a pipe, which have no width: rich would take 80, too few for a table's last column"""


def show_plan(document: PlanDocument, *, every: bool = False) -> None:
    """Print the plan; with ``every``, decisions without a choice too."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    unknown = not console.is_terminal and "COLUMNS" not in os.environ
    if unknown or console.width < 1:  # COLUMNS=0, as containers without a terminal have it: nothing would be shown
        console.width = PIPED_COLUMNS
    if is_quiet():
        print_result(document, console)
    else:
        print_plan(document, console, every=every)


def print_result(document: PlanDocument, console: Console) -> None:
    """What was decided where there was a choice, and what it costs."""
    choices = [f"{row.axis}={row.chosen}" for row in document.decisions if row.open]
    batch = f"{document.batch.micro_batch} x {document.batch.accumulation}"
    for line in (document.project.summary, ", ".join([*choices, f"batch {batch}"])):
        console.print(escape_text(line), soft_wrap=True)
    console.print(draw_bar(document.estimate), soft_wrap=True)
    console.print(format_speed(document), soft_wrap=True)


def escape_text(text: str) -> str:
    """Text from outside has no power: neither rich's marks nor what a terminal obeys."""
    from rich.markup import escape

    return escape(escape_control(text))


def print_plan(document: PlanDocument, console: Console, *, every: bool = False) -> None:
    console.print(f"[bold]{escape_text(document.project.summary)}[/bold]")
    for line in list_value_lines(document):
        console.print(f"  {escape_text(line)}", soft_wrap=True)
    for note in document.notes:
        console.print(f"  [dim]note: {escape_text(note.text)}[/dim]")
    console.print(build_decisions_table(document, every))
    console.print()
    console.print(draw_bar(document.estimate))
    for name, gib in sorted(document.estimate.memory_gib.items(), key=lambda item: -item[1]):
        if gib >= 0.005 * document.estimate.peak_memory_gib:
            console.print(f"    {name:<28} {gib:8.2f} GiB")
    console.print(format_speed(document))
    if document.run:
        console.print(f"run    {escape_text(document.run.summary)}", soft_wrap=True)
    if document.evaluation:
        console.print(f"eval   {escape_text(document.evaluation.summary)}", soft_wrap=True)
    if document.server:
        console.print(f"serves {escape_text(describe_limits(document))}", soft_wrap=True)
    if len(document.devices) > 1:
        console.print(build_devices_table(document))
    if document.runners_up:
        console.print("runners-up:")
        for row in document.runners_up:
            console.print(f"  {escape_text(format_runner_up(row))}")
    for line in document.untested:
        console.print(f"  [dim]untested: {escape_text(line)}[/dim]")
    if document.goal:
        console.print(build_offers_table(document.goal))


SHOWN_VALUES = {
    "train": ("seq_len", "global_batch", "learning_rate", "epochs", "lora_rank", "lora_dropout"),
    "infer": ("new_tokens", "concurrency"),
}
"""Defaults that are worth a word in a terminal, by mode; PLAN.md has all."""


def list_value_lines(document: PlanDocument) -> list[str]:
    """What the user gave, then what perfgen chose for him."""
    values, mode = to_json(document.yours), document.project.mode
    length = "seq_len" if mode == "train" else "prompt_tokens"
    given = [
        f"{length if name == 'seq_len' else name} {values[name]}" for name in values if name not in document.defaults
    ]
    given += list_given_options(document) if mode == "train" else []
    chosen = [f"{name} {values[name]}" for name in SHOWN_VALUES[mode] if name in document.defaults]
    lines = [f"yours: {', '.join(given)}"] if given else []
    if chosen:
        lines.append(f"default: {', '.join(chosen)} (`perfgen why NAME` says where from)")
    if "seq_len" in document.defaults:
        lines.append(f"default {length} {values['seq_len']}: {document.defaults['seq_len']}")
    return lines


def list_given_options(document: PlanDocument) -> list[str]:
    """Of what a training evaluates and writes, that which somebody gave."""
    config, evaluation = document.config, document.evaluation
    given = []
    if not evaluation:
        given.append("eval none")
    elif not evaluation.default:
        given.append(f"eval {evaluation.source}")
    if config.early_stopping:
        given.append(f"early_stopping {config.early_stopping}")
    if config.training and config.training.report_to != "none":
        given.append(f"report_to {config.training.report_to}")
    return given


def build_decisions_table(document: PlanDocument, every: bool) -> Table:
    """A row a decision, then the devices and the batch."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("decision", "choice", "why"):
        table.add_column(column, overflow="fold")
    for row in (d for d in document.decisions if d.open or every):
        why = row.why + (f"  [{row.quality_note}]" if row.quality_note else "")
        table.add_row(row.axis, f"[bold]{escape_text(row.chosen)}[/bold]", escape_text(why))
    batch, layout = document.batch, document.layout
    if layout.of_devices > 1:
        table.add_row("devices", f"[bold]{layout.devices} of {layout.of_devices}[/bold]", describe_division(layout))
    table.add_row("batch", f"[bold]{batch.micro_batch} x {batch.accumulation}[/bold]", describe_batch(document))
    return table


def describe_batch(document: PlanDocument) -> str:
    batch = document.batch
    if document.project.mode == "infer":
        return f"{batch.micro_batch} prompts at a time" if batch.micro_batch > 1 else "one prompt at a time"
    each = " on each" if document.layout.devices > 1 else ""
    whose = "default" if "global_batch" in document.defaults else "yours"
    sequences = "one sequence" if batch.micro_batch == 1 else f"{batch.micro_batch} sequences"
    return f"{sequences} at a time{each}, {batch.global_batch} an optimizer step ({whose})"


RANKS = {
    "usd_per_hour": "what an hour costs",
    "usd_per_million_tokens": "what the run costs",
    "devices": "how many devices a machine has, and their memory",
}
"""of the machines that `--goal` looks for, in words"""


def build_offers_table(goal: GoalRecord) -> Table:
    """The machines that meet the target, the best first."""
    from rich.table import Table

    title = f"the {goal.goal} first, by {RANKS[goal.ranked_by]}"
    table = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left")
    table.add_column("machine", overflow="fold")
    table.add_column("cloud", overflow="fold")
    timed = "an answer" if goal.concurrencies else "a step"
    for column in ("$/hour", "region, date", "tokens/day", "$/million tokens", timed):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("parallelism", overflow="fold")
    for offer in goal.offers:
        price, each = offer.usd_per_hour, offer.usd_per_million_tokens
        table.add_row(
            offer.hardware,
            offer.cloud,
            (f"{price:.2f}" if price else "-")
            + (f" ({offer.spot_usd_per_hour:.2f} spot)" if offer.spot_usd_per_hour else ""),
            describe_price_day(offer),
            f"{offer.tokens_per_day:,.0f}",
            f"{each:.3f}" if each else "-",
            f"{format_figure(offer.latency_seconds)} s",
            f"{offer.choice['parallelism']} on {offer.devices}"
            + (f", {offer.copies} copies" if offer.copies > 1 else ""),
        )
    priced = any(offer.price_read for offer in goal.offers)
    about = ["on-demand prices of one region on one day; speeds are predicted" if priced else "speeds are predicted"]
    if len(goal.concurrencies) > 1:
        tried = ", ".join(map(str, goal.concurrencies))
        about.append(
            f"the first with {goal.offers[0].concurrency} answers at a time, of {tried} the fewest that do: pass --concurrency on"
        )
    elif goal.concurrencies:
        about.append(f"of {goal.concurrencies[0]} at a time: --concurrency, or a target, asks for more")
    if goal.concurrencies and goal.target_tokens_per_day is None and goal.max_latency_seconds is None:
        about.append(
            f"an answer takes {format_figure(goal.offers[0].latency_seconds)} s on the first: --max-latency asks for sooner ones"
        )
    table.caption = "; ".join(about)
    table.caption_justify = "left"
    return table


def describe_price_day(offer: OfferRecord) -> str:
    """Where and on which day the price was asked; a spot price of another day says its own."""
    if not offer.price_read:
        return "-"
    of_spot = f" (spot {offer.spot_read})" if offer.spot_read not in (None, offer.price_read) else ""
    return f"{offer.price_region or 'cheapest US'}, {offer.price_read}{of_spot}"


def describe_division(layout: LayoutRecord) -> str:
    """How the devices share the work, in words."""
    ways = {
        "replicate": "copies of the model",
        "shard": "shards of its states",
        "tp": "tensor parts",
        "pp": "stages",
        "cp": "parts of each sequence",
        "ep": "groups of experts",
    }
    parts = [f"{getattr(layout, name)} {words}" for name, words in ways.items() if getattr(layout, name) > 1]
    nodes = f", over {layout.nodes} nodes" if layout.nodes > 1 else ""
    return (" x ".join(parts) or "one process") + nodes


def describe_limits(document: PlanDocument) -> str:
    """What the server may be asked for, and how many sequences of other lengths would fit."""
    serving, server = document.config.serving, document.server
    words = f"{serving.max_concurrency} at a time of up to {serving.max_context:,} tokens (limit: {server.limited_by})"
    others = ", ".join(f"{row.sequences:,} x {row.context:,}" for row in server.frontier)
    return f"{words}; would fit: {others}" if others else words


def draw_bar(estimate: EstimateRecord, width: int = 28) -> str:
    share = min(1.0, estimate.peak_memory_gib / estimate.limit_gib)
    filled = round(share * width)
    bar = "█" * filled + "░" * (width - filled)
    between = format_range(estimate.peak_memory_gib_p10, estimate.peak_memory_gib_p90, "{:.1f}".format)
    return f"memory {bar} {estimate.peak_memory_gib:.1f}{between} of {estimate.limit_gib:.1f} GiB ({estimate.basis})"


def format_range(low: float | None, high: float | None, write: Callable[[float], str]) -> str:
    """P10 and P90 in brackets; nothing where they are not known."""
    return "" if low is None or high is None else f" ({write(low)}–{write(high)})"


def format_speed(document: PlanDocument) -> str:
    estimate = document.estimate
    unit = "step" if document.project.mode == "train" else "answer"
    between = format_range(estimate.step_seconds_p10, estimate.step_seconds_p90, format_figure)
    return (
        f"time   {format_figure(estimate.step_seconds)} s{between} a{'n' if unit == 'answer' else ''} {unit}, "
        f"{format_rate(estimate.tokens_per_second)} tokens/s ({estimate.basis})"
    )


def format_runner_up(row: RunnerUpRecord) -> str:
    """What differs from the choice, and what it costs."""
    estimate = row.estimate
    return f"{', '.join(row.changes)}: {format_figure(estimate.step_seconds)} s, {estimate.peak_memory_gib:.1f} GiB"


def build_devices_table(document: PlanDocument) -> Table:
    """What 1, 2, 4, … devices would give."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    of_run = any(row.gpu_hours is not None for row in document.devices)
    is_counted = of_run or any(row.gpu_hours_per_1000_steps is not None for row in document.devices)
    unit = "step" if document.project.mode == "train" else "answer"
    hours = name_hours(document.project.accelerator) + ("" if of_run else f" per\n1,000 {unit}s")
    for column in ("devices", f"s per {unit}", "tokens/s", *([hours] if is_counted else ()), "memory"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for row in document.devices:
        if row.step_seconds is None or row.tokens_per_second is None:
            table.add_row(str(row.count), *("-" * (len(table.columns) - 2)), escape_text(row.why_not or ""))
            continue
        spent = row.gpu_hours if of_run else row.gpu_hours_per_1000_steps
        table.add_row(
            f"[bold]{row.count}[/bold]" if row.chosen else str(row.count),
            format_figure(row.step_seconds),
            format_rate(row.tokens_per_second),
            *(["-" if spent is None else format_figure(spent)] if is_counted else ()),
            f"{row.peak_memory_gib:.1f} GiB",
            "this plan" if row.chosen else escape_text(", ".join(row.changes)),
        )
    return table


def format_ladder(ladder: tuple) -> Iterator[str]:
    for rung in ladder:
        estimate = rung.best.estimate
        yield (
            f"{rung.option:<34} {rung.change}: {estimate.peak_memory_gib:.1f} of {estimate.limit_gib:.1f} GiB, "
            f"{format_figure(estimate.step_seconds)} s, {format_rate(estimate.tokens_per_second)} tokens/s"
        )
