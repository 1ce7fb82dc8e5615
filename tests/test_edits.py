import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.case.request import Request
from generator.emit.document import build_document
from generator.pipeline import plan_request
from generator.techniques.base import list_axes
from generator.techniques.edits import Code, EditConflict, Edits, make_argument, merge_edits, write_literal

MODEL = Path(__file__).resolve().parents[1] / "examples" / "models" / "llama-3.1-8b.json"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_a_literal_reads_back_as_the_same_value(value):
    assert ast.literal_eval(write_literal(value)) == value


def test_code_is_emitted_as_it_stands():
    assert make_argument("dtype", Code("torch.bfloat16")).code == "torch.bfloat16"


def test_merged_imports_are_sorted_and_said_once():
    parts = [("b", Edits(imports=("import torch", "import b"))), ("a", Edits(imports=("import torch",)))]
    assert merge_edits(parts).imports == ("import b", "import torch")


def test_merge_does_not_depend_on_the_order_of_sets():
    a, b = ("a", Edits(requirements=("peft",))), ("b", Edits(requirements=("bitsandbytes",)))
    assert merge_edits([a, b]).requirements == merge_edits([b, a]).requirements


@pytest.mark.parametrize("place", ["training_arguments", "model_arguments"])
def test_two_techniques_that_set_one_argument_are_an_error(place):
    parts = [
        ("x=1", Edits(**{place: (make_argument("bf16", True),)})),
        ("y=2", Edits(**{place: (make_argument("bf16", False),)})),
    ]
    with pytest.raises(EditConflict, match="x=1 and y=2 both set bf16"):
        merge_edits(parts)


def test_two_techniques_that_set_one_variable_are_an_error():
    parts = [
        ("x", Edits(environment=(("OMP_NUM_THREADS", "4"),))),
        ("y", Edits(environment=(("OMP_NUM_THREADS", "8"),))),
    ]
    with pytest.raises(EditConflict, match="OMP_NUM_THREADS"):
        merge_edits(parts)


def test_every_member_of_a_plan_is_asked_for_its_edits_once(monkeypatch):
    asked = []
    for technique in (t for axis in list_axes() for t in axis.members):
        kind = type(technique)
        if "edits" in vars(kind):
            monkeypatch.setattr(kind, "edits", count_calls(kind.edits, asked))
    planned = plan_request(Request(hardware="8xh100-sxm-80gb", model=str(MODEL)))
    traced = {entry.name for entry in build_document(planned).provenance}
    assert {"optim", "dtype", "attn_implementation"} <= traced
    assert len(asked) == len(set(asked)) and {mode for _, mode in asked} == {"train", "infer"}


def count_calls(edits, asked):
    def counted(self, case):
        asked.append((self.id, case.workload.mode))
        return edits(self, case)

    return counted
