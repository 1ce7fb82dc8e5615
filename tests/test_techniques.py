"""Every technique is declared the way CONTRIBUTING.md says, so that one file is enough."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from added import added_files
from making import H100, case, llama
from rules.table import on, pin

from generator.case.request import Request
from generator.cost.execution import Execution
from generator.decide.serving import plan_case
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.errors import UsageError
from generator.pipeline import plan_request
from generator.techniques.base import Measured, Published, Technique, find_technique, list_axes, load_technique
from hwdetect.types import Disk

ROOT = Path(__file__).resolve().parents[1]
ALL = [t for axis in list_axes() for t in axis.members]
FIELDS = set(Execution.__dataclass_fields__)
HEADINGS = ("What it does:", "When it loses:", "Known problems:")


def test_an_axis_that_is_not_its_folders_ends_with_both(monkeypatch):
    """The folder's name in the place of the axis's ended a plan with a KeyError of the search."""
    module = ModuleType("generator.techniques.data_loading.kept")
    fields = {"axis": "data_loading", "name": "kept", "__module__": module.__name__}
    module.Kept = type("Kept", (Technique,), fields)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(TypeError, match=r"\('data-loading', 'kept'\), not \('data_loading', 'kept'\)"):
        load_technique(module.__name__)


@pytest.mark.parametrize("technique", ALL, ids=lambda t: t.id)
def test_declaration(technique):
    path = Path(inspect.getfile(type(technique)))
    assert technique.axis == path.parent.name.replace("_", "-")
    assert technique.name == path.stem.replace("_", "-")
    assert set(technique.modes) <= {"train", "infer"} and technique.modes
    assert 0 <= technique.quality <= 3
    if technique.quality:
        assert technique.quality_note, "a risk is said aloud"
    if not technique.baseline and technique.axis not in ("packing", "cache", "loss"):
        assert technique.evidence or technique.quality == 0 or technique.request_only
    for item in technique.evidence:
        assert isinstance(item, (Published, Measured))
        if isinstance(item, Published):
            assert item.url.startswith("https://") and item.claim
        else:
            assert (ROOT / "benchmarks" / "results" / item.file).is_file()


@pytest.mark.parametrize("technique", ALL, ids=lambda t: t.id)
def test_the_docstring_has_a_title_and_the_three_headings(technique):
    """Its own, not its parent's: "Title.", a blank line, then what stands under each heading in one to four lines."""
    assert type(technique).__doc__ is not None
    title, blank, *lines = inspect.cleandoc(type(technique).__doc__).splitlines()
    assert title.endswith((".", ")")) and not blank
    places = [place for place, line in enumerate(lines) if line.startswith(HEADINGS)]
    assert [line.split(":")[0] + ":" for line in (lines[place] for place in places)] == list(HEADINGS)
    assert places[0] == 0
    for start, end in zip(places, [*places[1:], len(lines)], strict=True):
        text = " ".join(lines[start:end]).split(": ", 1)[1]
        assert len(text.split()) >= 3 and text.endswith(".") and end - start <= 4
    assert technique.title == title.rstrip(".")


@pytest.mark.parametrize("axis", list_axes(), ids=lambda a: a.name)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_an_axis_has_one_plain_member_for_each_mode(axis, mode):
    members = axis.for_mode(mode)
    assert len({t.name for t in members}) == len(members)
    assert sum(t.baseline for t in members) <= 1
    assert axis.about


def test_a_technique_that_may_be_preferred_has_evidence():
    silent = [t.id for t in ALL if not t.baseline and not t.evidence and not t.request_only]
    # user's choice, or no alternative where they apply: nothing is claimed to be better
    assert set(silent) <= {"cache=none", "loss=chunked", "quantization=none", "quantization=stored"}, silent


def test_find():
    assert find_technique("precision", "bf16").name == "bf16"
    assert find_technique("precision", "no-such") is None


@pytest.mark.parametrize(("free_gib", "says"), [(10, "GiB free"), (4000, None), (None, None)])
def test_a_disk_must_hold_the_states(free_gib, says):
    disk = Disk(role="work", path="/scratch", kind="nvme", free_bytes=free_gib and free_gib << 30)
    why = find_technique("offload", "optimizer-nvme").obstacle(case(H100, llama(), disks=(disk,)))
    assert says in why if says else why is None


# ---- optimizers and the cost model


@pytest.mark.parametrize("state", ["    state = OptimizerState(full_states=3, source='the paper')\n", ""])
def test_an_optimizer_is_one_file(tmp_path, state):
    """What it keeps stood in a table of the cost model, and a plan stopped without it."""
    with added_files(tmp_path, {"optimizer/shampoo.py": SHAMPOO + state}):
        if not state:
            with pytest.raises(TypeError, match=r"Shampoo has no state: .*full_states.*step_passes.*source"):
                list_axes()
            return
        three = plan_case(pin(on(), "optimizer=shampoo")).best.estimate
        two = plan_case(pin(on(), "optimizer=adamw-fused")).best.estimate
    states = [next(item.value for item in plan.memory if item.name == "optimizer states") for plan in (three, two)]
    assert states[0] == pytest.approx(1.5 * states[1])


SHAMPOO = '''
from generator.case.optimizer_states import OptimizerState
from generator.techniques.optimizers import Optimizer


class Shampoo(Optimizer):
    """Shampoo."""

    name = "shampoo"
    optim = "shampoo"
'''


# ---- what one more file changes


def read_example() -> tuple[str, str]:
    """The technique that CONTRIBUTING.md shows: where its file goes, and the file."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class MaxAutotune" in b)
    path, source = block.split("\n", 1)
    return path.removeprefix("# generator/techniques/"), source


@pytest.mark.parametrize("partner", ["parallelism=zero3", "loss=chunked", "loss=liger"])
def test_the_example_of_contributing_refuses_what_a_compiled_graph_refuses(tmp_path, partner):
    """Issue 8: made as CONTRIBUTING said, it was planned together with ZeRO-3 and with the chunked loss."""
    path, source = read_example()
    of = on(devices=4)
    with added_files(tmp_path, {path: source}):
        added = find_technique("compile", "max-autotune")
        test_declaration(added)
        test_the_docstring_has_a_title_and_the_three_headings(added)
        assert plan_case(pin(of, "compile=max-autotune")).best.choice["compile"] == "max-autotune"
        with pytest.raises(UsageError, match="cannot stand together"):
            plan_case(pin(of, "compile=max-autotune", partner))


NEVER = '''
from generator.case.case import Case
from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Technique
from generator.techniques.optimizers import Optimizer


class Never({base}):
    """A technique that no case takes."""

    axis = "{axis}"
    name = "{name}"
    optim = "never"
    modes = {modes}

    state = OptimizerState(source="none")

    def obstacle(self, case: Case) -> str | None:
        return "a test says so"
'''

MODELS = ROOT / "examples" / "models"
REQUESTS = {
    "sample-on-cpu": Request(hardware="cpu:4"),
    "full-on-8-gpus": Request(hardware="8xh100-sxm-80gb", model=str(MODELS / "llama-3.1-8b.json")),
    "lora-on-one-gpu": Request(
        hardware="1xrtx-4090", model="m", config=str(MODELS / "qwen2.5-1.5b.json"), train="lora", offline=True
    ),
    "inference": Request(hardware="1xh100-sxm-80gb", model="m", config=str(MODELS / "llama-3.1-8b.json"), mode="infer"),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", ["a-first", "zz-last"])
def test_a_technique_that_no_case_takes_changes_only_lists_of_what_was_not_taken(tmp_path, request_name, name):
    request = REQUESTS[request_name]
    before = to_json(build_document(plan_request(request)))
    sources = {}
    for axis in list_axes():
        base = "Optimizer" if axis.name == "optimizer" else "Technique"
        modes = tuple(mode for mode in ("train", "infer") if axis.for_mode(mode))
        path = f"{axis.name.replace('-', '_')}/{name.replace('-', '_')}.py"
        sources[path] = NEVER.format(axis=axis.name, name=name, base=base, modes=modes)
    with added_files(tmp_path, sources):
        after = to_json(build_document(plan_request(request)))
    assert not take_rejected(before, name)
    assert take_rejected(after, name) == len(list_decisions(before))
    assert after == before


NO_OTHER = "no other can be used"


def list_decisions(document: dict) -> list[dict]:
    """Those of the plan, and of how a trained model is served."""
    return [*document["decisions"], *(document["serving"] or {"decisions": ()})["decisions"]]


def take_rejected(document: dict, name: str) -> int:
    """Takes ``name`` out of the lists of what was not taken; how many there were. Where there is no choice at all, "why" quotes
    the first of that list: the quotation goes too."""
    taken = 0
    for decision in list_decisions(document):
        if decision["why"].startswith(NO_OTHER):
            decision["why"] = NO_OTHER
        kept = [r for r in decision["rejected"] if r["name"] != name]
        taken += len(decision["rejected"]) - len(kept)
        decision["rejected"] = kept
    return taken
