"""plan.json has a type and a schema: what is written fits both, what is read is held against them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from generator.cli import perfgen
from generator.emit.plan_document import PlanDocument
from generator.emit.plan_json import dump_schema, from_json, make_schema, to_json
from generator.errors import SourceError
from generator.run.plan_file import read_document, read_plan

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*/project"))


def read_example(project: Path) -> dict:
    return json.loads((project / "plan.json").read_text(encoding="utf-8"))


def test_the_published_schema_is_current():
    assert (ROOT / "generator" / "plan.schema.json").read_text(encoding="utf-8") == dump_schema()


def test_the_command_prints_the_schema():
    assert CliRunner().invoke(perfgen, ["plan", "--schema"]).output == dump_schema()


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda p: p.parent.name)
def test_every_example_fits_the_schema_and_the_type(project):
    jsonschema = pytest.importorskip("jsonschema")
    plan = read_example(project)
    jsonschema.validate(plan, make_schema())
    assert to_json(from_json(plan)) == plan, "what is read is what was written, and nothing is without a type"


def test_the_portable_plan_of_the_template_fits_the_schema():
    jsonschema = pytest.importorskip("jsonschema")
    questions = yaml.safe_load((ROOT / "portable.yml").read_text(encoding="utf-8"))
    jsonschema.validate(questions["plan"]["default"], make_schema())


def test_a_plan_for_a_rented_machine_fits_the_schema():
    jsonschema = pytest.importorskip("jsonschema")
    arguments = ["plan", "--target-tokens-per-day", "1e6", "--mode", "infer", "--json", "--sample"]
    done = CliRunner().invoke(perfgen, arguments, catch_exceptions=False)
    plan = json.loads(done.stdout)
    assert plan["goal"]["offers"]
    jsonschema.validate(plan, make_schema())
    assert to_json(from_json(plan)) == plan


BROKEN = {
    "schema": 99,
    "project": {"mode": 5},
    "estimate": {"step_seconds": "fast"},
    "decisions": [{"axis": "precision"}],
    "edits": [],
    "config": {"training": None},
    "layout": {"devices": "all"},
}


@pytest.mark.parametrize("key", BROKEN)
def test_a_foreign_plan_is_refused_by_the_path_of_what_is_wrong(tmp_path, key):
    plan, broken = read_example(EXAMPLES[0]), BROKEN[key]
    plan[key] = plan[key] | broken if isinstance(broken, dict) else broken
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for read in (read_document, lambda folder: read_plan(folder, key)):
        with pytest.raises(SourceError, match=key) as refused:
            read(tmp_path)
        assert refused.value.code == 4 and refused.value.hint
    field = next(iter(broken), "") if isinstance(broken, dict) else ""
    assert field in refused.value.message


def shorten(value: object) -> object:
    """Of every list of lists or objects the first."""
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item) for item in (value[:1] if value and isinstance(value[0], (dict, list)) else value)]
    return value


def list_places(value: object, place: tuple = ()) -> Iterator[tuple]:
    """The path of every value."""
    yield place
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from list_places(item, (*place, key))


def put(plan: dict, place: tuple, value: object) -> dict:
    """``plan`` with another value at one place."""
    if not place:
        return value
    copied = list(plan) if isinstance(plan, list) else dict(plan)
    copied[place[0]] = put(plan[place[0]], place[1:], value)
    return copied


def accepts(read: Callable[[object], object], plan: object) -> bool:
    try:
        read(plan)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("wrong", [None, 5, "x", []], ids=repr)
def test_what_is_read_is_what_pydantic_would_read(wrong):
    """Every value of a plan in turn replaced: our reader of types, which costs no import, refuses what pydantic does."""
    from pydantic import TypeAdapter

    adapter = TypeAdapter(PlanDocument)
    plan = shorten(read_example(next(project for project in EXAMPLES if "a100-2x8" in str(project))))
    places = list(list_places(plan))
    assert len(places) > 400
    for place in places:
        changed = put(plan, place, wrong)
        ours = accepts(from_json, changed)
        named = json.loads(json.dumps(changed).replace('"from":', '"from_":'))
        assert ours == accepts(lambda p: adapter.validate_json(json.dumps(p), strict=True), named), (place, ours)


LARGE = next(project for project in EXAMPLES if "a100-2x8-8b-full" in str(project))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("provenance", 0, "axis"), "nope", r"provenance\.0\.axis is 'nope'"),
        (("choice",), {}, r"choice\.parallelism is missing"),
        (("choice",), {"parallelism": "fsdp2"}, r"choice\.\w+ is missing"),
        (("devices", 0, "step_seconds"), None, r"devices\.0\.step_seconds is null"),
        (("schema",), True, "is of schema True"),
        (("schema",), 1.0, r"is of schema 1\.0"),
        (("estimate", "step_seconds"), float("nan"), "NaN is no finite number"),
        (("estimate", "step_seconds"), float("-inf"), "-Infinity is no finite number"),
        (("estimate", "step_seconds"), 10**400, r"estimate\.step_seconds is not a number that a float holds"),
        (("project", "name"), "a\0b", r"project\.name is not a string without NUL"),
        (("hello",), json.loads("[" * 200 + "]" * 200), "nests deeper than 100 levels"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_plan_that_was_tampered_with_is_refused_by_the_path(tmp_path, place, value, words):
    plan = read_example(LARGE)
    plan = put(plan | {"hello": 1}, place, value)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(SourceError, match=words) as refused:
        read_document(tmp_path)
    assert refused.value.code == 4


def test_a_number_larger_than_any_float_is_refused(tmp_path):
    """json reads 1e400 as infinity."""
    text = (LARGE / "plan.json").read_text(encoding="utf-8")
    (tmp_path / "plan.json").write_text(text.replace('"learning_rate": ', '"learning_rate": 1e400, "was": ', 1))
    with pytest.raises(SourceError, match="1e400 is no finite number"):
        read_document(tmp_path)


def test_parts_are_handed_back_as_their_types_have_them(tmp_path):
    plan = read_example(LARGE)
    (tmp_path / "plan.json").write_text(json.dumps(put(plan, ("project",), plan["project"] | {"unknown": 5})))
    assert read_plan(tmp_path, "project", "edits") == {"project": plan["project"], "edits": plan["edits"]}


def test_parts_that_are_not_asked_for_are_not_looked_at(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({"versions": {"torch": "2"}, "decisions": 5}))
    assert read_plan(tmp_path, "versions")["versions"] == {"torch": "2"}


def test_a_key_that_is_left_out_is_not_one_without_a_value():
    plans = [read_example(project) for project in EXAMPLES]
    hub = next(p for p in plans if p["project"]["hub"])
    local = next(p for p in plans if not p["project"]["hub"])
    assert hub["config"]["revision"] is None and "revision" not in local["config"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--schema"],
        ["plan", "--hardware", "cpu:4", "--sample"],
        ["why", "precision", "--hardware", "cpu:4"],
        ["why", "precision", "--project", str(EXAMPLES[0])],
    ],
)
def test_planning_imports_no_pydantic(arguments):
    code = (
        "import sys; from generator.cli import perfgen\n"
        f"perfgen({arguments!r}, standalone_mode=False)\n"
        "assert 'pydantic' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_tuple_of_an_earlier_version_lacks_its_later_fields():
    """Attention had four of its fields: every plan.json of before was called unreadable."""
    plan = read_example(EXAMPLES[0])
    attention = plan["case"]["model"]["attention"]
    attention[:] = [kind[:4] for kind in attention]
    assert all(not kind.held for kind in from_json(plan).case.model.attention)
    attention[:] = [kind[:2] for kind in attention]
    with pytest.raises(ValueError, match="a list of"):
        from_json(plan)
