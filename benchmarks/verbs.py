"""How many top-level functions are named by a verb and its object: `python benchmarks/verbs.py [FOLDER …]`.

A function counts if the first word of its name, leading underscores aside, is one of ``VERBS`` (or a question: is, has, can).
Measured the same way, httpx, pypa/build, structlog and openapi-python-client have 63 to 67 %.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

VERBS = frozenset(
    """
    accept adapt add advise aggregate allow answer append apply ask assemble assert assume attach average bind build
    calculate call can cap capture cast check choose clamp classify clean clear close collapse collect combine compare
    compile complete compose compute configure confirm connect consume convert copy cost count cover create cut date
    decide decode decompose deduce default defer define deflate delete derive describe detect determine diagnose diff
    discover divide document download draw drop dump echo emit encode ensure enumerate escape estimate evaluate exchange
    exclude execute expand expect explain export extend extract fetch fill filter find finish fit fix flatten flush
    follow forbid format gather generate get give group guess handle has hash hide hold identify ignore import include
    index infer inflate initialize insert inspect install interpret invert is iterate join judge keep kill land launch
    limit link list load locate log look lower make map mark mask match measure merge mount move multiply name narrow
    needs nest normalize note number observe offer open order override pack pad parse pass pick pin place plan point
    pool predict prefer prepare print probe propose provide prune publish pull push put quantize query quote raise rank
    rate read rebuild recognize record recover redact reduce refer refuse register reject release relocate remove rename
    render repeat replace replay report request require rescale reserve reset resolve restore restrict resume retry
    return rewrite round route run sample save say scale scan schedule score seal search select send serialize serve set
    shape shard share shift shorten show shut size skip slice smoke sort split start state stop store strip subtract sum
    summarize supply support sweep switch sync synthesize take test time total touch trace track train transform
    translate traverse trim try tune turn unpack unwrap update use validate verify visit wait walk warn weigh widen wrap
    write yield zip
    """.split()  # noqa: SIM905
)
EXPLAINS = ("why_",)
"""the question itself is the name: why_not_more_devices"""


def is_verb_first(name: str) -> bool:
    bare = name.lstrip("_")
    return bare.split("_")[0] in VERBS or bare.startswith(EXPLAINS)


def list_functions(folder: Path) -> list[tuple[Path, str]]:
    """Top-level functions of every module below ``folder``, dunder names and entry points called main aside."""
    functions = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name != "main"
                and not node.name.startswith("__")
            ):
                functions.append((path, node.name))
    return functions


def measure_share(folder: Path) -> float:
    names = [name for _, name in list_functions(folder)]
    return sum(map(is_verb_first, names)) / len(names)


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    for folder in map(Path, sys.argv[1:] or [root / "generator", root / "hwdetect"]):
        functions = list_functions(folder)
        others = [(path, name) for path, name in functions if not is_verb_first(name)]
        print(f"{folder.name}: {1 - len(others) / len(functions):.0%} of {len(functions)} functions begin with a verb")
        for room, count in sorted(Counter(str(path.parent.relative_to(folder)) for path, _ in others).items()):
            print(
                f"  {room}: {count} do not: {', '.join(n for p, n in others if str(p.parent.relative_to(folder)) == room)}"
            )


if __name__ == "__main__":
    main()
