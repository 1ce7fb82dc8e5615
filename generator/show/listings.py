"""`perfgen techniques` and `perfgen devices`: what is known, with sources. Nothing is cut: what is long stands last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import NoReturn

import click

from generator.errors import UsageError
from generator.figures import format_figure
from generator.progress import echo_json
from generator.techniques.base import Published, list_axes
from hwdetect.mig import list_profiles, split_spelling
from hwdetect.spec import SpecError, parse_spec, spell_processor
from hwdetect.types import Device

UNITS = {"bytes": (2**30, "GiB"), "l2_bytes": (2**20, "MiB"), "bytes_per_s": (1e9, "GB/s"), "tdp_watts": (1, "W")}
"""of a device's numbers, by the last word of their field: what one is divided by, and how the rest is called"""


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
        echo_rows("techniques", list_techniques())
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
    """The devices that ``pattern`` is a part of, or a name of; raises ``UsageError`` where there is none."""
    from hwdetect import catalog

    devices = select_devices(pattern)
    if not devices and pattern:
        if hint := spell_processor(pattern.lower()):
            raise UsageError(f"{pattern!r} is a processor and no device of the catalogue", hint)
        raise_unknown("device", pattern, catalog.find_close_names(pattern), "`perfgen devices` lists all")
    if as_json:
        echo_rows("devices", [asdict(d) | {"mig": [asdict(p) for p in list_profiles(d)]} for d in devices])
        return
    click.echo(f"{'id':<29} {'memory':>8} {'GB/s':>6} {'bf16 or fp16':>14}  name")
    for d in devices:
        memory = f"{d.memory_bytes / 2**30:.0f} GiB" if d.memory_bytes else "-"
        bandwidth = f"{d.memory_bytes_per_s / 1e9:.0f}" if d.memory_bytes_per_s else "-"
        rate = d.flops("bf16") or d.flops("fp16")
        speed = f"{rate / 1e12:.0f} TFLOP/s" if rate else "-"
        click.echo(f"{d.id:<29} {memory:>8} {bandwidth:>6} {speed:>14}  {d.name}")
        if pattern:
            show_profiles(d)
            for field, url in d.sources:
                click.echo(f"    {field}: {format_field(d, field)}{url}")


def select_devices(pattern: str | None) -> list[Device]:
    """Those in whose id, name or alias a word begins with the text, else which hold it; else by PCI id (``10de:26b7``, ``26b7``); else the one
    that it is a way of writing (``3090ti``), or a part of.

    Raises ``UsageError`` for an instance that its board does not have.
    """
    from hwdetect import catalog

    every = catalog.list_devices()
    if not pattern:
        return list(every)
    wanted = " ".join(pattern.lower().split())
    begun = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}")  # the M5 is no part of SXM5
    holding = [d for d in every if any(begun.search(name.lower()) for name in (d.id, d.name, *d.aliases))]
    holding = holding or [d for d in every if any(wanted in name.lower() for name in (d.id, d.name, *d.aliases))]
    holding = holding or [d for d in every if wanted in {part for pci in d.pci_ids for part in (pci, pci[5:])}]
    if not holding and split_spelling(wanted):
        try:
            meant = parse_spec(wanted).boards[0].device
        except SpecError as error:
            raise UsageError(str(error), "`perfgen devices` lists all") from error
    else:
        meant = None if holding else catalog.resolve(wanted)
    return [catalog.load(meant)] if meant else holding


def format_field(device: Device, field: str) -> str:
    """The value that a source is of, with what parts it from there; nothing where the catalogue keeps no value."""
    table, key = field.split(".")
    names = {f.name for f in fields(device)}
    if table in names:  # rates, by dtype
        return f"{format_figure(dict(getattr(device, table))[key] / 1e12, 4)} TFLOP/s  "
    value = next(
        (getattr(device, name) for name in (f"{table}_{key}", f"{key}_{table}", key) if name in names - {"kind"}), None
    )
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"{'yes' if value else 'no'}  "
    if isinstance(value, tuple):
        return f"{', '.join(value)}  "
    divisor, unit = UNITS.get(key, (None, ""))
    return f"{value / divisor:,.5g} {unit}  " if divisor else f"{value}  "


def show_profiles(device: Device) -> None:
    for profile in list_profiles(device):
        size = f"{profile.memory_bytes / 2**30:.1f} GiB" + (" (derived)" if profile.derived else "")
        units = f"{profile.units} of {device.compute_units} multiprocessors"
        click.echo(f"    MIG {device.id}:{profile.name}  at most {profile.most}, {units}, {size}: {profile.source}")


def show_instances(as_json: bool, pattern: str | None) -> None:
    """The cloud instance types that ``pattern`` is a part of; raises ``UsageError`` where there is none."""
    from hwdetect.cloud import list_instance_names, list_instances, list_unpriced

    wanted = (pattern or "").lower()
    rows = [i for i in list_instances() if wanted in f"{i.cloud}:{i.name} {i.device or 'cpu'}".lower()]
    if not rows:
        for unpriced in list_unpriced():
            if wanted.partition(":")[0].startswith(unpriced.cloud):
                raise UsageError(
                    f"no types and no prices of {unpriced.cloud}: {unpriced.why} ({unpriced.read})",
                    "`perfgen devices --instances` lists those of others",
                )
        close = get_close_matches(wanted, list_instance_names(), n=4, cutoff=0.5)
        raise_unknown("instance", wanted, close, "`perfgen devices --instances` lists all")
    if as_json:
        echo_rows("instances", [asdict(row) for row in rows])
        return
    click.echo(f"{'instance':<31} {'devices':<24} {'CPUs':>4} {'memory':>9} {'$/hour':>7}  region, read on")
    for row in rows:
        devices = f"{row.devices} x {row.device}" if row.device else "-"
        price, of = "-", "-"
        if row.price:
            price, of = f"{row.price.usd_per_hour:.2f}", f"{row.price.region or 'cheapest US'}, {row.price.read}"
        memory = f"{row.memory_bytes / 2**30:.0f} GiB"
        click.echo(f"{row.name:<31} {devices:<24} {row.vcpus:>4} {memory:>9} {price:>7}  {of}")
        if pattern:
            click.echo(f"    {row.cloud}: {row.source}")
            if row.price:
                click.echo(f"    price: {row.price.source}")
                if row.price and row.price.spot_usd_per_hour:
                    click.echo(
                        f"    spot: {row.price.spot_usd_per_hour:.2f}, {row.price.spot_read}: {row.price.spot_source}"
                    )
    if not pattern:
        click.echo("\non-demand prices of one region; `perfgen devices --instances NAME` has their sources")
        for unpriced in list_unpriced():
            click.echo(f"no price of {unpriced.cloud}: {unpriced.why} ({unpriced.read})")


def raise_unknown(kind: str, name: str, close: Sequence[str], hint: str) -> NoReturn:
    near = f"; close to it: {', '.join(close)}" if close else ""
    raise UsageError(f"no {kind} is called {name!r}{near}", hint)


def echo_rows(name: str, rows: list[dict]) -> None:
    echo_json({"schema": 1, name: rows})
