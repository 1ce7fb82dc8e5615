"""The arrows of hwdetect: what imports what, wherever the import stands (in functions and under TYPE_CHECKING too)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The map: a room imports itself and rooms of the lines above its own.
LAYERS = (
    # values, the one seam to the outside, tables
    {"types", "machine", "cloud", "driver_floor", "maker_tools", "pci_vendors"},
    {"topology", "mig", "findings", "unread", "view"},  # pure work on values
    {"catalog"},  # products
    {"checks"},  # what a field can be
    {"jsonio"},
    {"probes", "measure", "described"},  # readings, timings, machines that are only described
    {"spec", "complete"},  # a machine from a few words; what a recording's machine.json adds
    {"assemble", "stated"},  # a machine from its readings; what a user says of one
    {"recording"},
    {"__init__"},  # detect, capture, to_json, from_json
)
# What leads outside past the seam, and who may import it besides the rooms of the machine and of measurements.
OUTSIDE = frozenset(["os", "subprocess", "platform", "socket", "shutil", "ctypes", "psutil", "getpass", "pynvml"])
MAY_REACH_OUTSIDE = {
    "hwdetect.probes.nvidia.nvml_child": {"os"},  # writes to its parent
    "hwdetect.recording.write": {"os", "shutil"},  # writes the recording
    "hwdetect.recording.redact": {"getpass", "socket"},  # the names that it hides
}


def name_module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = {name_module(path): path for path in sorted((ROOT / "hwdetect").rglob("*.py"))}


def resolve_module(name: str) -> str | None:
    """The key of MODULES that a dotted name means; a package is its ``__init__``."""
    return next((key for key in (name, f"{name}.__init__") if key in MODULES), None)


def list_imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports; a name imported from a module counts as module where it is one."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if resolve_module(inner) else node.module)
    return names


def list_arrows(module: str) -> set[str]:
    return {target for name in list_imports(MODULES[module]) if (target := resolve_module(name))}


ARROWS = {module: list_arrows(module) for module in MODULES}


def find_circle(arrows: dict[str, set[str]]) -> list[str]:
    """Modules of one circle in order, empty where there is none."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for target in sorted(arrows[module]):
            if circle := visit(target, [*trail, module]):
                return circle
        done.add(module)
        return []

    return next((circle for module in sorted(arrows) if (circle := visit(module, []))), [])


def get_layer(module: str) -> int:
    room = module.split(".")[1]
    return next(number for number, rooms in enumerate(LAYERS) if room in rooms)


def test_there_is_no_circle():
    assert find_circle(ARROWS) == []
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [
        "b",
        "c",
        "b",
    ]  # the search finds one where there is one


def test_imports_in_functions_count():
    assert "hwdetect.assemble" in ARROWS["hwdetect.__init__"]
    assert "hwdetect.machine.process" in ARROWS["hwdetect.machine.live"]


def test_the_map_names_every_room_and_no_other():
    rooms = {module.split(".")[1] for module in MODULES}
    assert set().union(*LAYERS) == rooms and sum(map(len, LAYERS)) == len(rooms)


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_what_is_below_it(module):
    room = module.split(".")[1]
    outside = {target for target in ARROWS[module] if target.split(".")[1] != room}
    assert {target for target in outside if get_layer(target) >= get_layer(module)} == set()


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_the_generator_and_nothing_past_the_seam(module):
    names = {name.split(".")[0] for name in list_imports(MODULES[module])}
    assert "generator" not in names
    if module.split(".")[1] not in ("machine", "measure"):
        assert names & OUTSIDE <= MAY_REACH_OUTSIDE.get(module, set())
