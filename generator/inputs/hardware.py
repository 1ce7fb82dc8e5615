"""The machine: this one, a `detect --json` file, or a device spec."""

from __future__ import annotations

from pathlib import Path

from generator.errors import UsageError
from generator.inputs.json_files import load_json
from hwdetect import detect, from_json
from hwdetect.spec import SpecError, parse_spec
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
    hint = "give a file written by `perfgen detect --json`"
    try:
        if text.endswith(".json") or path.is_file():
            content = load_json(path)
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
