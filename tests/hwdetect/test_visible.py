"""What the environment leaves visible, by the rules of each maker's runtime."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from hwdetect import maker_tools
from hwdetect.assemble import read_machine
from hwdetect.probes import visible
from hwdetect.probes.notes import Notes
from hwdetect.probes.visible import apply_visibility
from hwdetect.types import Accelerator, Board
from tests.hwdetect.memory_machine import MemoryMachine

KFD = "sys/class/kfd/kfd/topology/nodes"


def chosen(vendor, environment, count=3, **facts):
    boards = tuple(Board(index=i, vendor=vendor, uuid=f"GPU-{i:x}a5f9e31{i:08x}") for i in range(count))
    own = tuple(Accelerator(index=i, board=i, uuid=boards[i].uuid, **facts) for i in range(count))
    machine = MemoryMachine({"proc/self/environ": "\0".join(f"{k}={v}" for k, v in environment.items())})
    _, left = apply_visibility(machine, own, boards, Notes())
    assert [a.index for a in left] == list(range(len(left)))
    return [a.board for a in left]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"ROCR_VISIBLE_DEVICES": "1,1,2"}, [1]),  # what was there ends the list and does not empty it
        ({"ROCR_VISIBLE_DEVICES": "1,x,2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1x"}, []),
        ({"ROCR_VISIBLE_DEVICES": "0x2"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "0,GPU-2A5F"}, [0, 2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-"}, []),
        ({"HIP_VISIBLE_DEVICES": "1,1,2"}, [1, 2]),  # HIP passes over what was there
        ({"HIP_VISIBLE_DEVICES": ""}, [0, 1, 2]),  # and an empty variable is none
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"HIP_VISIBLE_DEVICES": "0, 1"}, [0]),  # " 1" is no number to it
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        (
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"},
            [1],
        ),  # as Slurm and Ray set both: not applied twice
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),  # HIP counts what ROCr has left
        ({"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "2"}, []),
    ],
)
def test_amd(environment, expected):
    assert chosen("amd", environment) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("0", [0]), ("2,1", [1, 2]), ("0,9", [0]), ("0,0", [0]), ("", []), ("1.0", [1]), ("x", []), (" 0 , 2", [0, 2])],
)
def test_intel_masks_pass_over_what_is_not_there_and_keep_the_order(mask, expected):
    assert chosen("intel", {"ZE_AFFINITY_MASK": mask}) == expected


def test_a_tile_of_a_flat_hierarchy_has_no_tiles():
    assert chosen("intel", {"ZE_AFFINITY_MASK": "1.0,2"}, profile="tile 0") == [2]


@pytest.mark.parametrize(
    ("vendor", "environment", "expected"),
    [
        ("google", {"TPU_VISIBLE_CHIPS": "0,1"}, [0, 1]),
        ("huawei", {"ASCEND_RT_VISIBLE_DEVICES": "2"}, [2]),
        ("habana", {"HABANA_VISIBLE_DEVICES": "all"}, [0, 1, 2]),
        ("habana", {"HABANA_VISIBLE_DEVICES": "1"}, [1]),
        ("apple", {"CUDA_VISIBLE_DEVICES": "1"}, [0, 1, 2]),
    ],
)
def test_others(vendor, environment, expected):
    assert chosen(vendor, environment) == expected


def test_partitions_of_a_board_are_counted_one_by_one():
    files = {f"{KFD}/{n}/properties": "simd_count 152\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 1280\nunique_id 77\n"
             "num_xcc 1\ngfx_target_version 90402\n" for n in (2, 3, 4)}  # fmt: skip
    hardware = read_machine(MemoryMachine({**files, "proc/self/environ": "ROCR_VISIBLE_DEVICES=2,1"}), 1)
    assert len(hardware.boards) == 1 and len(hardware.accelerators) == 2
    id_of_all = read_machine(
        MemoryMachine({**files, "proc/self/environ": "ROCR_VISIBLE_DEVICES=GPU-000000000000004d"}), 1
    )
    assert id_of_all.accelerators == (), "an id that three devices share names none of them"


@pytest.mark.parametrize(("order", "doubt"), [(None, True), ("FASTEST_FIRST", True), ("PCI_BUS_ID", False)])
def test_numbers_of_unequal_boards_are_doubted_unless_the_order_is_set(order, doubt):
    boards = tuple(Board(index=i, vendor="nvidia", name=name) for i, name in enumerate(("T4", "L4")))
    own = tuple(Accelerator(index=i, board=i) for i in range(2))
    text = "CUDA_VISIBLE_DEVICES=0" + (f"\0CUDA_DEVICE_ORDER={order}" if order else "")
    notes, machine = Notes(), MemoryMachine({"proc/self/environ": text})
    _, left = apply_visibility(machine, own, boards, notes)
    assert [a.board for a in left] == [0] and bool(notes.items) is doubt
    equal = tuple(replace(board, name="L4") for board in boards)
    notes = Notes()
    apply_visibility(machine, own, equal, notes)
    assert not notes.items


def test_two_makers_keep_their_places():
    boards = (Board(index=0, vendor="nvidia"), Board(index=1, vendor="nvidia"), Board(index=2, vendor="amd"))
    own = tuple(Accelerator(index=i, board=i) for i in range(3))
    machine = MemoryMachine({"proc/self/environ": "CUDA_VISIBLE_DEVICES=1"})
    shown, left = apply_visibility(machine, own, boards, Notes())
    assert shown == "1" and [a.board for a in left] == [1], (
        "the variable is HIP's as well, and its device 1 is not there"
    )


VENDORS = set(maker_tools.TOOLS)
TABLES = {"maker_tools.py", "pci_vendors.py"}


def test_no_maker_is_compared_by_name():
    """A comparison, or a table, with a maker's name stands in the makers' tool file and in the list of their PCI numbers alone."""
    found = []
    for path in sorted(Path(maker_tools.__file__).parent.rglob("*.py")):
        if path.name in TABLES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            compared = [*node.comparators, node.left] if isinstance(node, ast.Compare) else []
            compared += [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
            words = [c for item in compared for c in ast.walk(item) if isinstance(c, ast.Constant)]
            found += [f"{path.name}:{node.lineno} {word.value}" for word in words if word.value in VENDORS]
    assert found == []


@pytest.mark.parametrize("vendor", [*maker_tools.TOOLS, "someone"])
def test_every_maker_has_rules_for_its_variables(vendor):
    assert {rule for rule, _ in maker_tools.get_tool_of(vendor).variables} <= set(visible.RULES)


def test_a_variable_that_may_hide_every_board_is_shown():
    """Also another maker's than NVIDIA's: no board tells whose it is."""
    machine = MemoryMachine({"proc/self/environ": "ASCEND_RT_VISIBLE_DEVICES=\0"})
    assert apply_visibility(machine, (), (), Notes()) == ("", ())
