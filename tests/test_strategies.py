"""The table of strategies is the only place that knows their names; the rows say what the emitted projects do."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest
from making import H100, case, cost, llama

from generator.case.layout import Layout
from generator.case.strategies import (
    EACH_ITS_SHARD,
    MESH_AXES,
    SEQUENCE_FORMS,
    STRATEGIES,
    TRAINER,
    find_skeletons,
)
from generator.cost.execution import Execution
from generator.cost.sharding import count_shards
from generator.decide.space import open_space
from generator.techniques.base import list_axes
from generator.techniques.traits import Trait

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "generator/case/strategies.py"
TECHNIQUES = ROOT / "generator/techniques"
NAMES = {*STRATEGIES, *SEQUENCE_FORMS}
PREFIXES = ("fsdp", "hsdp", "zero")
CALLS = ("startswith", "endswith", "removeprefix", "removesuffix", "index", "count", "get")


def modules() -> list[Path]:
    files = [*(ROOT / "generator").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    return [path for path in files if path != TABLE and path.parent.parent != TECHNIQUES]


def names_strategy(node: ast.expr, beside: str, prefixes: bool = False) -> bool:
    """Whether a literal names strategies. "none" is a value of many fields: it counts beside a name with strategy in it."""
    words = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    named = [word for word in words if word in NAMES and (word != "none" or "strategy" in beside)]
    return bool(named) or (prefixes and any(word in PREFIXES for word in words))


def comparisons(tree: ast.AST) -> list[ast.expr]:
    """Every place where a literal decides: compared, looked for, matched, or the key of a table."""
    places: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            text = " ".join(ast.unparse(side) for side in sides)
            places += [side for side in sides if names_strategy(side, text)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            places += [x for x in node.args[:1] if names_strategy(x, ast.unparse(node.func), prefixes=True)]
        elif isinstance(node, ast.Subscript) and names_strategy(node.slice, ast.unparse(node.value)):
            places.append(node.slice)
        elif isinstance(node, ast.Dict):
            places += [key for key in node.keys if key is not None and names_strategy(key, "")]
        elif isinstance(node, ast.MatchValue) and names_strategy(node.value, "strategy"):
            places.append(node.value)
    return places


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_name_of_a_strategy_is_compared_outside_of_the_table(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = [f"line {x.lineno}: {ast.unparse(x)}" for x in comparisons(tree)]
    assert not places, "read a property of the row instead (generator/case/strategies.py)"


@pytest.mark.parametrize(
    "code",
    [
        'run.strategy == "zero3"',
        'strategy in ("ddp", "none")',
        'layout.strategy.startswith("fsdp")',
        'STAGE = {"zero1": 1}',
        'run.strategy == "none"',
        'TABLE["hsdp"]',
        'int(layout.strategy.removeprefix("zero"))',
    ],
)
def test_the_search_finds_what_it_is_for(code: str):
    assert comparisons(ast.parse(code))


def test_the_search_leaves_other_fields_alone():
    assert not comparisons(ast.parse('run.quant == "none" and run.offload_params != "none"'))


@pytest.mark.parametrize("row", STRATEGIES.values(), ids=lambda row: row.name)
def test_a_row_holds_together(row):
    """What is divided goes from states to weights, and what is reduced goes to its owner where it is divided."""
    assert row.divides_states >= row.divides_gradients >= row.divides_weights
    assert row.divides_weights >= row.reshards
    assert row.divides_gradients == row.reduces_every_micro_batch
    assert bool(row.live_elements) == (row.loads == EACH_ITS_SHARD)
    assert not (row.by_fsdp and row.by_deepspeed)
    in_place = row.library == "torch_xla"  # its marks divide the weights of a model that stays what it was
    assert bool(row.wrapper) == (row.exchanges and not row.layers_in_turn and not in_place)
    assert row.sequence_form in {"", *SEQUENCE_FORMS}
    assert row.by_deepspeed == (row.library == "deepspeed")


def test_a_mesh_axis_is_a_size_of_layouts_and_executions():
    for row in (Layout, Execution):
        assert {f.name for f in fields(row)} >= {*MESH_AXES, "cp", "sequence_form"}


EVERY = case(H100, llama(hidden=2048, layers=16, heads=16), devices=8, nodes=2)


def every_layout():
    """(technique, layout) for all ways to divide two nodes of eight."""
    of = EVERY
    (axis,) = [a for a in list_axes() if a.name == "parallelism"]
    for technique in axis.members:
        if technique.obstacle(of) is None:
            yield from ((technique, layout) for layout in technique.layouts(of) or ())


def test_layouts_name_rows_and_say_how_they_divide_sequences():
    seen = set()
    for technique, layout in every_layout():
        assert layout.strategy in STRATEGIES, technique.id
        assert (layout.sequence_form is None) == (layout.cp == 1), technique.id
        seen.add((technique.name, layout.sequence_form))
    assert ("context", "gather") in seen and ("ulysses", "ulysses") in seen


def test_a_mesh_axis_that_nothing_hides_stays_inside_a_node():
    inside = [size for size, axis in MESH_AXES.items() if axis.inside_node]
    for technique, layout in every_layout():
        assert all(getattr(layout, size) <= layout.per_node for size in inside), technique.id


@pytest.mark.parametrize("axis", MESH_AXES.values(), ids=lambda axis: axis.size)
def test_what_an_axis_divides_is_what_the_cost_model_divides(axis):
    one, two = (count_shards(Execution(**{axis.size: n})) for n in (1, 2))
    divided = {name for name in ("weights", "gradients", "states") if getattr(two, name) == 2 * getattr(one, name)}
    assert divided == set(axis.divides) - {"experts"}  # experts are part of the weights: gathered blocks leave them out


def test_what_is_emitted_is_what_a_skeleton_runs_and_saves():
    for technique, layout in every_layout():
        if technique.explain_unemitted(EVERY) is None:
            sizes = {size: getattr(layout, size) for size in MESH_AXES}
            row = STRATEGIES[layout.strategy]
            if not row.layers_in_turn and "train" in technique.modes:
                skeletons = find_skeletons(layout.strategy, layout.sequence_form, sizes)
                assert skeletons, technique.id
                assert (TRAINER in skeletons) == (Trait.OWN_LOOP not in technique.provides), technique.id


def test_a_divided_sequence_without_its_form_is_an_error_not_a_guess():
    from tests.cost.models import MISTRAL_7B, model

    run = Execution(strategy="zero3", dp=2, cp=2, weights_dtype="bfloat16", seq_len=4096)
    with pytest.raises(ValueError, match="sequence_form"):
        model(MISTRAL_7B).estimate(run)
    ring, heads = (model(MISTRAL_7B).estimate(replace(run, sequence_form=form)) for form in ("ring", "ulysses"))
    assert ring.step_seconds != heads.step_seconds


def test_packed_weights_are_not_read_by_zero3():
    """Transformers makes the whole unpacked model in every process; the lower stages have it there anyway."""
    packed = replace(llama(), quantization="mxfp4")
    of = case(H100, packed, devices=8)
    space = open_space(of, cost(of))
    assert "every process would hold the whole unpacked model" in space.obstacles["parallelism=zero3"]
    assert "parallelism=zero2" not in space.obstacles and "parallelism=fsdp2" not in space.obstacles
