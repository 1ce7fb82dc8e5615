"""Write examples/ and the portable plan, portable.yml, anew: `make golden`. A test compares instead of writing."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from generator.case.request import Request  # noqa: E402
from generator.emit.plan_json import to_json  # noqa: E402
from generator.emit.render import render  # noqa: E402
from generator.pipeline import document_request  # noqa: E402

MARK = "# Written by `make golden`; included by copier.yml.\n"


def list_cases() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "examples").glob("*/case.toml"))


def read_request(case: Path) -> Request:
    """The case.toml as a request; paths in it are relative to its folder."""
    fields = tomllib.loads((case / "case.toml").read_text(encoding="utf-8"))["request"]
    for key in ("config", "hardware", "data"):
        if key in fields and (case / fields[key]).exists():
            fields[key] = str((case / fields[key]).resolve())
    if "pins" in fields:
        fields["pins"] = tuple(tuple(pin.split("=", 1)) for pin in fields["pins"])
    if "allow" in fields:
        fields["allow"] = tuple(fields["allow"])
    return Request(**fields, offline=True, given=tuple(fields))


def write_case(case: Path, dest: Path) -> None:
    render(describe_case(case), dest)


def describe_case(case: Path) -> dict:
    """plan.json of a case, as `json.loads` gives it."""
    return json.loads(json.dumps(to_json(document_request(read_request(case), name=case.name))))


def dump_portable_plan() -> str:
    """portable.yml: the hidden question of copier.yml, whose default is the portable plan."""
    sample = to_json(document_request(read_request(ROOT / "examples" / "portable"), name="portable"))
    question = {"plan": {"type": "yaml", "ask": False, "default": sample}}
    return MARK + yaml.safe_dump(question, sort_keys=False, width=1000, allow_unicode=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="only these cases")
    only = set(parser.parse_args().case)
    (ROOT / "portable.yml").write_text(dump_portable_plan(), encoding="utf-8")
    for case in list_cases():
        if only and case.name not in only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            dest = Path(scratch) / case.name
            write_case(case, dest)
            shutil.rmtree(case / "project", ignore_errors=True)
            shutil.move(dest, case / "project")
        print(f"wrote {case.name}")


if __name__ == "__main__":
    main()
