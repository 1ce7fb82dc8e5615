"""Every empirical number of the cost model says what it is, what it is based on and where it comes from."""

from __future__ import annotations

import ast
import copy
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from benchmarks import local, served
from generator.cost import constants as c

ROOT = Path(__file__).resolve().parents[2]
COST = ROOT / "generator/cost"


def load_fit():
    spec = importlib.util.spec_from_file_location("fit", ROOT / "benchmarks/fit.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def named_constants():
    """(name as fit.py writes it, constant)."""
    for name, value in vars(c).items():
        if name.startswith("_") or not name.isupper():
            continue
        if isinstance(value, dict):
            yield from (((name, key), constant) for key, constant in value.items())
        elif not isinstance(value, (str, tuple)):
            yield name, value


CONSTANTS = dict(named_constants())


@pytest.mark.parametrize("name", CONSTANTS, ids=str)
def test_a_constant_has_unit_basis_and_source(name):
    constant = CONSTANTS[name]
    assert isinstance(constant, c.Constant)
    assert constant.basis in c.BASES
    assert constant.unit and constant.source


def test_what_says_fitted_is_what_the_fit_moves():
    fit = load_fit()
    moved = {*fit.FITTED, *fit.SERVED, *served.PRIOR, *local.PRIOR}
    assert {name for name, constant in CONSTANTS.items() if constant.basis == c.FITTED} == moved


def test_a_constant_at_a_bound_of_the_fit_says_so():
    """In its source, or in the comment beside it where the source is part of every plan."""
    fit = load_fit()
    text = (COST / "constants.py").read_text(encoding="utf-8")
    at_bound = {name: bound for name in (*fit.FITTED, *fit.SERVED) if (bound := fit.find_bound(name, CONSTANTS[name]))}
    assert at_bound == {}
    for name, bound in at_bound.items():
        entry = text[text.index(f"\n{name} = ") :].split("\n)\n")[0]
        assert f"at the {bound} bound of the fit" in entry


def test_a_table_that_fitted_a_constant_is_one_that_the_fit_reads():
    fit = load_fit()
    for name, constant in CONSTANTS.items():
        if constant.basis == c.FITTED:
            named = set(re.findall(r"\b(?:more/)?(?:train|infer)_\w+", constant.source))
            assert named <= {*fit.TABLES, *fit.SERVED_TABLES}, name


def module_numbers(path: Path) -> list[str]:
    """Names of module-level assignments to a number, alone or in a table."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    numbers = []
    for node in tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for part in ast.walk(value) if value is not None else ():
            if isinstance(part, ast.Constant) and type(part.value) in (int, float):
                numbers.append(ast.unparse(node).split("=")[0].strip())
                break
    return numbers


ALLOWED = {
    "BYTES": "sizes of dtypes",
    "FORMATS": "sizes of packed weights",
    "GIB": "a unit",
    "MANY": "a limit of the search over links",
    "FASTEST": "an order",
    "TRACED": "the step that was traced",
}


@pytest.mark.parametrize("path", sorted(COST.glob("*.py")), ids=lambda path: path.name)
def test_no_other_file_holds_constants(path: Path):
    if path.name == "constants.py":
        return
    assert [name for name in module_numbers(path) if name.split(":")[0] not in ALLOWED] == []


def test_no_source_stands_apart_from_its_number():
    for path in COST.glob("*.py"):
        names = re.findall(r"^([A-Z_]+_SOURCE) =", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert names in ([], ["PIPELINE_SOURCE"]), path  # a formula's, and an item's


def test_a_constant_is_used():
    text = "\n".join(path.read_text(encoding="utf-8") for path in COST.glob("*.py") if path.name != "constants.py")
    for name in {name if isinstance(name, str) else name[0] for name in CONSTANTS}:
        assert re.search(rf"\bc\.{name}\b", text), name


def test_a_constant_computes_and_copies_as_a_float():
    constant = copy.deepcopy(c.OVERLAP_SHARE)
    assert constant == c.OVERLAP_SHARE and constant.source == c.OVERLAP_SHARE.source
    assert type(constant * 2) is float
