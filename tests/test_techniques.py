"""Every technique is declared the way CONTRIBUTING.md says, so that one file is enough."""

import inspect
from pathlib import Path

import pytest
from making import H100, case, llama

from generator.cost.execution import Execution
from generator.techniques.base import Measured, Published, find_technique, list_axes
from hwdetect.types import Disk

ALL = [t for axis in list_axes() for t in axis.members]
FIELDS = set(Execution.__dataclass_fields__)


@pytest.mark.parametrize("technique", ALL, ids=lambda t: t.id)
def test_declaration(technique):
    path = Path(inspect.getfile(type(technique)))
    assert technique.axis == path.parent.name.replace("_", "-")
    assert technique.name == path.stem.replace("_", "-")
    assert technique.__doc__ and len(technique.__doc__.strip().splitlines()) >= 1
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
            assert (Path(__file__).parent.parent / "benchmarks" / "results" / item.file).is_file()


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
    assert set(silent) <= {"cache=none", "loss=chunked", "quantization=none"}, silent


def test_find():
    assert find_technique("precision", "bf16").name == "bf16"
    assert find_technique("precision", "no-such") is None


@pytest.mark.parametrize(("free_gib", "says"), [(10, "GiB free"), (4000, None), (None, None)])
def test_a_disk_must_hold_the_states(free_gib, says):
    disk = Disk(role="work", path="/scratch", kind="nvme", free_bytes=free_gib and free_gib << 30)
    found = find_technique("offload", "optimizer-nvme").obstacle(case(H100, llama(), disks=(disk,)))
    assert says in found if says else found is None
