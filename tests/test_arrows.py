"""The map of the code: a room imports only what stands before it in ROOMS. Imports inside functions and for types count too."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "bundle",
    "masking",
    "figures",
    "errors",
    "progress",
    "model",
    "inputs",
    "case",
    "cost",
    "techniques",
    "decide",
    "emit",
    "run",
    "show",
    "estimate",
)
FRONT = ("pipeline", "update", "options", "cli", "start")
"""rooms and modules of generator, from the ground up"""
SIDE_BY_SIDE = {"cost": {"techniques"}, "techniques": {"cost"}}
"""neither may import the other: a formula knows no technique, a technique holds no formula"""


def list_modules(package: str) -> dict[str, Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    dotted = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    return dict(zip(dotted, files, strict=True))


def list_imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """The ``modules`` that a file imports, wherever the import stands; of ``from a import b`` a.b where that is one, else a."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= named if named <= modules.keys() else {node.module} | named
    return names & modules.keys()


def name_room(module: str) -> str:
    """The part after the package: ``generator.cost.time`` stands in cost."""
    return module.split(".")[1] if "." in module else ""


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if circle := walk(other, [*path, name]):
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := walk(name, []))), [])


def test_every_room_is_on_the_map():
    assert {name_room(name) for name in list_modules("generator")} - {""} == {*ROOMS, *FRONT}


def test_a_room_imports_only_what_is_below_it():
    wrong, order, modules = [], (*ROOMS, *FRONT), list_modules("generator")
    for module, path in modules.items():
        room = name_room(module)
        below = set(order[: order.index(room) + 1]) - SIDE_BY_SIDE.get(room, set()) if room else set()
        others = list_imports(path, modules) - {"generator"}
        wrong += [f"{module} imports {other}" for other in sorted(others) if name_room(other) not in below]
    assert not wrong, "\n".join(wrong)


def test_the_reader_of_machines_knows_nothing_of_the_generator():
    modules = list_modules("generator")
    assert not {
        m: imported for m, path in list_modules("hwdetect").items() if (imported := list_imports(path, modules))
    }


def test_no_circle():
    for package in ("generator", "hwdetect", "benchmarks"):
        modules = list_modules(package)
        circle = find_circle({name: list_imports(path, modules) - {name} for name, path in modules.items()})
        assert not circle, " -> ".join(circle)


def test_a_circle_would_be_found():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


STARTERS = {
    "subprocess": {"run", "Popen", "call", "check_call", "check_output"},
    "os": {"system", "popen", "fork", "posix_spawn"},
}
RUNNERS = {"hwdetect.machine.process", "hwdetect.machine.supervisor"}
"""They alone start programs: with a deadline, bounded output, out of the working folder, the whole tree ended."""


def list_starts(path: Path) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)]
    return [
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node.value, ast.Name) and node.attr in STARTERS.get(node.value.id, ())
    ]


def test_one_module_starts_programs():
    modules = list_modules("generator") | list_modules("hwdetect")
    assert {name for name, path in modules.items() if list_starts(path)} == RUNNERS
