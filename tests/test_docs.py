"""Documents drift: the maps in prose are compared with the tree."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_path_in_architecture_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 12
    for row in rows:
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            if "/" in name:
                folder = name.rsplit("/", 1)[0]
            path = ROOT / name if "/" in name else ROOT / folder / name
            assert path.exists(), name


def test_every_module_of_the_generator_is_in_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    helpers = {"__init__", "bundle", "errors", "explain", "init", "listing", "view", "stacks", "cases"}
    for path in (ROOT / "generator").glob("*.py"):
        assert path.stem in helpers or f"{path.stem}.py" in text, path.name


def test_exit_codes_in_the_readme_are_those_of_the_code():
    from generator import errors

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    raised = {e.code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.PerfgenError)} - {1}
    assert raised <= documented


def test_options_in_the_readme_exist():
    from generator.cli import perfgen

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    known = {o for c in perfgen.commands.values() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--data-file", "--help"}
    assert used <= known, used - known
