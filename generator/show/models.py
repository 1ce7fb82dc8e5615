"""`perfgen models`: the catalogue, with sources."""

from __future__ import annotations

import click

from generator.errors import UsageError
from generator.model import describe
from generator.model.catalog import CatalogModel, list_nearest_names, load_catalog
from generator.progress import echo_json


def describe_model(model: CatalogModel) -> dict:
    spec = describe(model.config, model.name)
    return {
        "id": model.name,
        "model_type": spec.model_type,
        "kind": spec.kind,
        "params": spec.params,
        "active_params": spec.active_params,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "max_positions": spec.max_positions,
        "quantization": spec.quantization,
        "source": model.source,
        "config": dict(model.config),
    }


def show_models(as_json: bool, pattern: str | None) -> None:
    """Raises ``UsageError`` where nothing matches ``pattern``."""
    models = [m for name, m in load_catalog().items() if not pattern or pattern.lower() in name.lower()]
    if not models:
        near = list_nearest_names(pattern or "")
        hint = f"near it: {', '.join(near)}" if near else "`perfgen models` lists them all"
        raise UsageError(f"no model of the catalogue has {pattern!r} in its id", hint)
    rows = [describe_model(model) for model in models]
    if as_json:
        echo_json({"schema": 1, "models": rows})
        return
    width = max(len(row["id"]) for row in rows)
    click.echo(f"{'id':<{width}} {'type':<14} {'parameters':>11} {'active':>9} {'positions':>9}")
    for row in rows:
        counts = format_count(row["params"]), format_count(row["active_params"])
        click.echo(
            f"{row['id']:<{width}} {row['model_type']:<14} {counts[0]:>11} {counts[1]:>9} {row['max_positions'] or '-':>9}"
        )
        if pattern:
            click.echo(f"    {row['source']}")


def format_count(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
