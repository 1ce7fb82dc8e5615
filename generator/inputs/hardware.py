"""The machine: this one, a `detect --json` file, or a device spec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from generator.errors import UsageError
from generator.inputs.json_files import MAX_DEPTH, MAX_JSON_BYTES, is_deep, is_small_file
from hwdetect import detect, from_json
from hwdetect.spec import SpecError, parse_spec
from hwdetect.stated import state_disk, state_host_memory, state_links
from hwdetect.types import Hardware

PORTABLE = "portable"
"""--hardware portable: a plan that runs anywhere, because nothing is assumed of the machine but in its estimate."""


def read_hardware(text: str | None, measure: bool = False) -> Hardware | None:
    """This machine, a `detect --json` file, or a device spec; ``None`` for ``portable``: no machine is known."""
    if text is None:
        return detect(measure=measure)
    if measure:
        raise UsageError(
            f"--measure times this machine, and --hardware {text} is another",
            "measure there: perfgen detect --measure --json",
        )
    if text == PORTABLE:
        return None
    path = Path(text)
    hint = "correct it, or have `perfgen detect --json` write it on that machine"
    try:
        if text.endswith(".json") or path.is_file():
            content = load_machine(path)
            if not isinstance(content, dict) or "schema" not in content:
                raise UsageError(f"--hardware {text} says no schema: no machine", hint)
            return from_json(content)
    except OSError as error:
        raise UsageError(f"--hardware {text}: {error.strerror}", hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--hardware {text}: {error}", hint) from error
    try:
        return parse_spec(text)
    except SpecError as error:
        raise UsageError(f"--hardware {text}: {error}", "`perfgen devices` lists what is known") from error


def state_values(hardware: Hardware | None, stated: Mapping[str, str | None]) -> Hardware | None:
    """The machine with what the user says of it, by option (see ``hwdetect.stated``). Raises ``UsageError``."""
    for option, text in stated.items():
        if text is None:
            continue
        if hardware is None:
            raise UsageError(f"{option} {text}: --hardware portable is a plan for no machine in particular", "drop one")
        try:
            hardware = STATED[option](hardware, text)
        except SpecError as error:
            raise UsageError(f"{option} {error}", "`perfgen plan --help` has the form") from error
    return hardware


STATED = {"--host-memory": state_host_memory, "--disk": state_disk, "--link": state_links}


def load_machine(path: Path) -> object:
    """The parsed content of a file that a person may have edited. Raises ``OSError``, ``ValueError``, ``RecursionError``.

    A byte order mark is passed over (PowerShell's ``>`` writes one); numbers that are none come out as they are, for
    ``from_json`` to name the field.
    """
    if path.exists() and not is_small_file(path):
        raise ValueError(f"it is no file of at most {MAX_JSON_BYTES >> 20} MiB")
    text = path.read_text(encoding="utf-8-sig")
    content = json.loads(text, object_pairs_hook=refuse_repeated_keys, parse_int=read_integer)
    json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair: ValueError
    if is_deep(content, MAX_DEPTH):
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
    return content


def refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated[:60]!r} stands twice in one object")
    return content


def read_integer(text: str) -> float:
    """More than a hundred digits are out of every range, and Python converts no more than 4,300."""
    return int(text) if len(text) <= 100 else float(text)
