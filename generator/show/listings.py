"""`perfgen techniques` and `perfgen devices`: what is known, with sources."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from generator.techniques.base import Published, list_axes


def list_techniques() -> list[dict]:
    return [
        {
            "axis": axis.name,
            "name": technique.name,
            "title": technique.title,
            "documentation": technique.__doc__,
            "modes": list(technique.modes),
            "baseline": technique.baseline,
            "quality": technique.quality,
            "quality_note": technique.quality_note,
            "request_only": technique.request_only,
            "evidence": [asdict(e) for e in technique.evidence],
        }
        for axis in list_axes()
        for technique in axis.members
    ]


def show_techniques(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"schema": 1, "techniques": list_techniques()}, indent=2, ensure_ascii=False))
        return
    for axis in list_axes():
        click.echo(f"{axis.name}: {axis.about}")
        for t in axis.members:
            mark = "*" if t.baseline else " "
            risk = f"  [may touch convergence: {t.quality_note}]" if t.quality else ""
            click.echo(f"  {mark} {t.name:<20} {t.title}{risk}")
            for e in t.evidence:
                click.echo(f"      {e.url}: {e.claim}" if isinstance(e, Published) else f"      {e.file}: {e.row}")
    click.echo("\n* the plain one of its axis")


def show_devices(as_json: bool, pattern: str | None) -> None:
    from hwdetect import catalog

    devices = [d for d in catalog.list_devices() if not pattern or pattern.lower() in f"{d.id} {d.name}".lower()]
    if as_json:
        click.echo(json.dumps({"schema": 1, "devices": [asdict(d) for d in devices]}, indent=2, ensure_ascii=False))
        return
    click.echo(f"{'id':<26} {'memory':>9} {'GB/s':>8} {'bf16 or fp16':>14}  name")
    for d in devices:
        memory = f"{d.memory_bytes / 2**30:.0f} GiB" if d.memory_bytes else "-"
        bandwidth = f"{d.memory_bytes_per_s / 1e9:.0f}" if d.memory_bytes_per_s else "-"
        rate = d.flops("bf16") or d.flops("fp16")
        speed = f"{rate / 1e12:.0f} TFLOP/s" if rate else "-"
        click.echo(f"{d.id:<26} {memory:>9} {bandwidth:>8} {speed:>14}  {d.name}")
        if pattern:
            for field, url in d.sources:
                click.echo(f"    {field}: {url}")
