"""Documents drift: the maps in prose are compared with the tree."""

import importlib.util
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


def test_every_path_that_a_question_or_a_recipe_names_exists():
    for document in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        paths = re.findall(r"`((?:generator|hwdetect|templates|tests|benchmarks|docs)/[\w./-]*)`", text)
        assert len(paths) > 10
        for path in paths:
            assert (ROOT / path).exists(), path


def test_no_recipe_runs_what_takes_minutes():
    """Of tests/cost the recipe of an optimizer ran DeepSpeed's compilers and four processes, and said nothing for a quarter of an hour."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\.venv/bin/python -m pytest (.*)$", text, re.MULTILINE)
    assert len(commands) > 8
    for command in commands:
        paths = [ROOT / word for word in command.split() if word.startswith("tests/")]
        files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
        assert files, command
        slow = any("mark.slow" in file.read_text(encoding="utf-8") for file in files)
        assert ("-m 'not slow'" in command) == slow, command


def test_every_module_and_room_of_the_generator_is_in_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules = [path for path in (ROOT / "generator").glob("*.py") if path.stem != "__init__"]
    rooms = [path.parent for path in (ROOT / "generator").glob("*/__init__.py")]
    assert len(modules) > 4 and len(rooms) > 8
    for name in [path.name for path in modules] + [f"generator/{room.name}/" for room in rooms]:
        assert name in text, name


def test_every_word_of_the_glossary_is_used():
    text = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")
    words = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(words) > 20 and words == sorted(words)
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "generator").rglob("*.py"))
    prose = code + "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "ARCHITECTURE.md"))
    for word in words:
        assert re.search(re.sub("[ -]", "[ _-]", word), prose, re.IGNORECASE), word


def test_the_readme_begins_with_a_picture_two_commands_and_the_scores():
    screen = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    order = [screen.index(part) for part in ("](docs/plan.svg)", "\nmake demo ", "\nmake test ", "\n| peak memory, ")]
    assert order == sorted(order)
    for path in re.findall(r"\]\(([^)#:]+)\)", screen):
        assert (ROOT / path).exists(), path


def test_the_picture_is_what_the_command_prints():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.draw_terminal(), (
        "python docs/picture.py draws it anew"
    )


def test_exit_codes_in_the_readme_are_those_of_the_code():
    from generator import errors

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    raised = {e.code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.PerfgenError)} - {1}
    assert raised <= documented


def test_every_command_but_the_two_of_the_readme_has_json():
    from generator.cli import perfgen

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    without = {name for name, c in perfgen.commands.items() if not any("--json" in p.opts for p in c.params)}
    assert set(re.findall(r"`(\w+)`", re.search(r"All commands but ([^,]+),", text)[1])) == without


def test_options_in_the_readme_exist():
    from generator.cli import perfgen

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    known = {o for c in perfgen.commands.values() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--data-file", "--help"}
    assert used <= known, used - known


def test_counts_in_the_readme_are_counted():
    """Of what a listing of the tree counts: cases of the golden record and optimizers."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    optimizers = {path.stem for path in (ROOT / "generator/techniques/optimizer").glob("*.py")} - {"__init__"}
    assert int(re.search(r"is written for (\d+) cases", text)[1]) == len(list(ROOT.glob("examples/*/case.toml")))
    assert int(re.search(r"(\d+) optimizers", text)[1]) == len(optimizers)
