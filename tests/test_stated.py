"""What a user says of a machine takes the place of what was assumed, and changes the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.case.request import Request
from generator.errors import NothingFits, UsageError
from generator.pipeline import plan_request
from hwdetect.spec import SpecError, parse_spec
from hwdetect.stated import state_disk, state_host_memory, state_links

GIB = 2**30
MODEL = str(Path(__file__).parent.parent / "examples" / "models" / "llama-3.1-8b.json")


def plan(hardware: str, **stated):
    request = Request(model="x/y", config=MODEL, data="x/z", hardware=hardware, offline=True, **stated)
    return plan_request(request)


def list_texts(planned) -> str:
    return "\n".join(note.text for note in planned.notes)


@pytest.mark.parametrize(
    ("text", "gib"), [("512gb", 512), ("512 GiB", 512), ("1.5tb", 1536), ("64g", 64), (" 2 TiB ", 2048)]
)
def test_host_memory_is_what_was_said(text, gib):
    machine = state_host_memory(parse_spec("8xh100-sxm-80gb"), text)
    assert machine.memory.total_bytes == machine.memory.available_bytes == gib * GIB
    assert not [note for note in machine.notes if note.field == "memory.total_bytes"]


@pytest.mark.parametrize("text", ["512", "0gb", "-1gb", "1e9gb", "gb", "", "٥gb"])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(SpecError, match="no amount of memory"):
        state_host_memory(parse_spec("1xt4"), text)


def test_a_disk_takes_the_place_of_those_that_were_read():
    machine = state_disk(parse_spec("p5.48xlarge"), "nvme,7.5gb/s")
    assert [(d.role, d.kind, d.read_bytes_per_s) for d in machine.disks] == [("work", "nvme", 7.5e9)]


@pytest.mark.parametrize("text", ["floppy", "nvme,7", "nvme,0gb/s", "nvme7gb/s", ",7gb/s"])
def test_what_is_no_disk_is_refused(text):
    with pytest.raises(SpecError, match=r"one of nvme|no rate"):
        state_disk(parse_spec("1xt4"), text)


def test_lanes_are_those_of_every_board_and_of_links_over_pcie():
    machine = state_links(parse_spec("4xrtx-4090"), "PCIe3x8")
    assert {(b.pcie.generation_max, b.pcie.width) for b in machine.boards} == {(3, 8)}
    assert {link.bandwidth_bytes_per_s for link in machine.links} == {0.985e9 * 8}
    joined = state_links(parse_spec("4xa100-sxm-80gb"), "pcie3x8")
    assert joined.links == parse_spec("4xa100-sxm-80gb").links  # NVLink is not PCIe


def test_bridges_and_none():
    bridged = state_links(parse_spec("4xrtx-3090"), "nvlink")
    assert bridged.links == parse_spec("4xrtx-3090+nvlink").links
    assert {link.kind for link in state_links(bridged, "pcie").links} == {"sys"}
    assert {link.kind for link in state_links(parse_spec("8xh100-sxm-80gb"), "pcie").links} == {"sys"}


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        ("4xrtx-4090", "nvlink"),
        ("8xh100-sxm-80gb", "nvlink"),
        ("cpu:8", "pcie"),
        ("1xt4", "pcie9x16"),
        ("1xt4", "0gb/s"),
    ],
)
def test_links_that_cannot_be_are_refused(hardware, text):
    with pytest.raises(SpecError):
        state_links(parse_spec(hardware), text)


@pytest.mark.parametrize("text", ["pcie", "nvlink", "25gb/s"])
@pytest.mark.parametrize("hardware", ["1xrtx-3090", "9xa100-mig-1g.10gb"])
def test_what_would_change_nothing_is_refused(hardware, text):
    """One board has no link to another, and the boards of MIG instances join none."""
    with pytest.raises(SpecError, match=r"no link between boards|bridges are not sold"):
        state_links(parse_spec(hardware), text)


def test_an_offloading_plan_names_what_it_rests_on():
    assumed = plan("2xrtx-4090")
    assert assumed.plan.best.execution.offload_params == "cpu"
    assert "rests on assumptions: the host's memory is twice the memory of the devices" in list_texts(assumed)
    stated = plan("2xrtx-4090", host_memory="256gb")
    assert stated.plan.best.execution.offload_params == "cpu" and "rests on" not in list_texts(stated)
    with pytest.raises(NothingFits, match="memory of the host"):
        plan("2xrtx-4090", host_memory="64gb")


def test_lanes_and_disks_have_their_price():
    def seconds(**stated):
        return plan("2xrtx-4090", host_memory="1tb", **stated).plan.best.estimate.step_seconds

    assert seconds(link="pcie3x4") > 1.5 * seconds()
    pins = (("offload", "all-nvme"), ("parallelism", "zero3"))
    assert seconds(disk="nvme,1gb/s", pins=pins) > 2 * seconds(disk="nvme,7gb/s", pins=pins)


def test_without_a_disk_none_is_offloaded_to():
    with pytest.raises(UsageError, match="--disk nvme"):
        plan("2xrtx-4090", pins=(("offload", "all-nvme"),))


def test_no_machine_has_no_memory_of_its_own():
    with pytest.raises(UsageError, match="--hardware portable"):
        plan("portable", host_memory="1gb")
