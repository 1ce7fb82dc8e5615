"""What a plan was made from, in lines for -v: which files, which revisions, how many rows, who counted the lengths."""

from __future__ import annotations

from collections.abc import Iterator

from generator.case.sources import Work
from generator.inputs.data_files import DataSource
from generator.inputs.model_source import ModelSource
from hwdetect.types import Hardware

ORIGINS = {"folder": "a folder", "config": "a config.json alone", "hub": "the model hub"}


def list_reading_lines(hardware: Hardware | None, work: Work) -> Iterator[str]:
    yield f"machine: {describe_machine(hardware)}"
    yield f"model: {describe_model(work.source)}"
    if work.data is not None:
        yield f"data: {describe_data(work.data)}"


def describe_machine(hardware: Hardware | None) -> str:
    if hardware is None:
        return "none (portable)"
    names = {board.index: board.name or board.vendor for board in hardware.boards}
    kinds = [f"{names.get(a.board, 'board')} {a.profile or ''}".strip() for a in hardware.accelerators]
    counts = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    nodes = f"{hardware.nodes.count} nodes of " if hardware.nodes.count > 1 else ""
    text = f"{nodes}{', '.join(counts) or hardware.cpu.model_name or 'a CPU'}"
    return f"{text}; {len(hardware.notes)} readings missing or assumed" if hardware.notes else text


def describe_model(source: ModelSource) -> str:
    parts = [f"{source.path}, {ORIGINS.get(source.kind, source.kind)}"]
    parts += [f"revision {source.revision}"] if source.revision else []
    parts.append("with weights" if source.has_weights else "without weights")
    parts.append(f"tokenizer {source.tokenizer or 'its own'}" if source.has_tokenizer else "no tokenizer")
    return ", ".join(parts)


def describe_data(data: DataSource) -> str:
    parts = [data.path, data.format]
    parts += [f"revision {data.revision}"] if data.revision else []
    parts += [f"{data.rows:,} rows"] if data.rows is not None else []
    parts += [f"{data.bad_rows:,} left out"] if data.bad_rows else []
    return f"{', '.join(parts)}; lengths: {data.length_source}"
