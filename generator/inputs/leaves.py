"""The leaves of the templates that read rows, run as they stand: a plan and its project cannot read the same row in two ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType

from generator.bundle import ROOT

MakeExample = Callable[[dict, Mapping[str, str]], dict | None]


@cache
def load_make_example(leaf: str) -> MakeExample:
    """``make_example`` of a leaf of templates/fragments/examples: an example of a row, none of an empty text, or ``ValueError``."""
    return run_leaf(f"examples/{leaf}", fields=run_leaf("fields")).make_example


@cache
def load_unpack_conversation() -> Callable[[dict], tuple[list[dict], dict]]:
    """``unpack_conversation`` of the leaf that reads messages: messages, and what else their chat template is given."""
    return run_leaf("fields").unpack_conversation


@cache
def load_labels() -> ModuleType:
    """The leaf that knows what of a conversation is learned from."""
    return run_leaf("labels/messages", fields=run_leaf("fields"), token_edges=run_leaf("token_edges"))


@cache
def load_plain_template() -> ModuleType:
    """The leaf that sets a chat template where there is none."""
    return run_leaf("chat_template")


@cache
def load_list_rows() -> Callable[[object], list]:
    """``list_rows`` of the leaf that reads JSON files."""
    return run_leaf("rows/json", open_data=load_open_data()).list_rows


@cache
def load_open_batches() -> Callable:
    """``open_batches`` of the leaf that reads Arrow files. Raises ``ImportError`` without pyarrow."""
    return run_leaf("rows/arrow").open_batches


@cache
def load_choose_form() -> Callable[[str], dict]:
    """``choose_form`` of the leaf that reads CSV files: keywords of csv.reader, by the first line."""
    return run_leaf("rows/csv", open_data=load_open_data()).choose_form


@cache
def load_read_schema(kind: str) -> Callable:
    """``read_schema`` of the leaf that reads Parquet or Arrow files. Raises ``ImportError`` without pyarrow."""
    return run_leaf(f"rows/{kind}").read_schema


@cache
def load_class_names() -> ModuleType:
    """The leaf that knows the names of numbered labels."""
    return run_leaf("class_names")


@cache
def load_open_data() -> ModuleType:
    return run_leaf("open_data")


@cache
def load_finished_runs() -> ModuleType:
    """The leaf that knows which run of a project is meant."""
    return run_leaf("finished_runs")


def run_leaf(leaf: str, **beside: ModuleType) -> ModuleType:
    """A leaf as a module; ``beside`` are the modules of the project that it imports, by their names there."""
    path = ROOT / "templates" / "fragments" / f"{leaf}.py"
    module = ModuleType(path.stem)
    shadowed = {name: sys.modules.get(name) for name in beside}
    sys.modules.update(beside)
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    finally:
        for name, before in shadowed.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
    return module
