"""What config.yaml says, or in one line why it cannot be used."""

import sys
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parent / "config.yaml"
KINDS = {
    "seq_len": (int, "a whole number"),
    "skip_bad": (bool, "true or false"),
    "output_dir": (str, "a path"),
    **dict.fromkeys(("columns", "training", "lora", "machine", "serving"), (dict, "names with values below it")),
}
"""by name, the type of its value"""


class Config(dict):
    """The names and values of the file; whoever asks for one that it lacks ends with a line that says so."""

    def __missing__(self, name: str):
        sys.exit(f"{FILE.name} has no {name}: plan.json has it as it was planned, under config")


def read_config() -> Any:
    """A ``Config``, of whose values no type checker knows the kinds."""
    try:
        values = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{FILE.name} cannot be read: {error}")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        sys.exit(f"{FILE.name}{line}: {getattr(error, 'problem', None) or 'this is not YAML'}")
    if not isinstance(values, dict):
        sys.exit(f"{FILE.name} has no names with values, as in `seq_len: 2048`")
    for name, (kind, what) in KINDS.items():
        # a bool is an int to Python
        if name in values and type(values[name]) is not kind:
            sys.exit(f"{FILE.name}: {name} is {values[name]!r}, not {what}")
    return Config(values)
