"""A drawn plan as a project: rendered, and each of its files read by what reads it in use."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from generator.emit.render import render

BIN = Path(sys.executable).parent
OF_THE_GPU = ("bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval")
"""arguments that ask whether a GPU is there"""


def check_project(document: dict[str, Any]) -> list[str]:
    """What a reader of the project's files refuses, by file."""
    with tempfile.TemporaryDirectory(prefix="perfgen-fuzz-") as scratch:
        folder = Path(scratch) / "p"
        render(document, folder)  # parses Python, JSON, TOML and YAML
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        checks = (check_arguments, check_accelerate, check_deepspeed, check_makefile, check_scripts, check_types)
        return [f"{check.__name__}: {fault}" for check in checks for fault in check(folder, config)]


def check_arguments(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """The values of train.py and of config.yaml make the arguments of the trainer it uses."""
    script = folder / "train.py"
    if not script.exists():
        return
    tree = ast.parse(script.read_text(encoding="utf-8"))
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "training_arguments")
    values: dict[str, Any] = dict(config["training"])
    for call in (
        n for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func) == "parser.set_defaults"
    ):
        values |= {k.arg: evaluate(k.value, folder, config) for k in call.keywords if k.arg}
    kept = {name: value for name, value in values.items() if name not in OF_THE_GPU}
    try:
        find_argument_class(function)(**kept | {"use_cpu": True, "deepspeed": None, "output_dir": str(folder / "run")})
    except Exception as error:  # whatever it refuses is a fault of the project
        yield f"{type(error).__name__}: {error}"


def find_argument_class(function: ast.FunctionDef) -> type:
    """TrainingArguments, or SFTConfig, as the function says."""
    name = ast.unparse(function.returns) if function.returns else ""
    if name == "SFTConfig":
        from trl import SFTConfig

        return SFTConfig
    from transformers import TrainingArguments

    return TrainingArguments


def evaluate(node: ast.expr, folder: Path, config: dict[str, Any]) -> Any:
    """The value of an argument as train.py computes it."""
    names = {"HERE": folder, "CONFIG": config, "Path": Path}
    return eval(compile(ast.Expression(node), "train.py", "eval"), {"__builtins__": {"str": str}}, names)


def check_accelerate(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    path = folder / "accelerate.yaml"
    if not path.exists():
        return
    from accelerate.commands.config.config_args import load_config_from_file

    settings = load_config_from_file(str(path))  # refuses a key that it does not know
    layout = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["layout"]
    if layout["nodes"] * layout["per_node"] != settings.num_processes:
        yield f"{settings.num_processes} processes, and the plan has {layout}"


def check_deepspeed(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    path = folder / "deepspeed.json"
    if not path.exists():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    settings = json.loads(path.read_text(encoding="utf-8"))
    filled = HfTrainerDeepSpeedConfig(settings).config["zero_optimization"]
    try:
        DeepSpeedZeroConfig(**{name: value for name, value in filled.items() if value != "auto"})
    except ValueError as error:
        yield str(error)


def check_makefile(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Every target can be planned by make."""
    serves = ("serve", "chat", "bench") if (folder / "serve.sh").exists() else ()
    image = ("image",) if (folder / "Dockerfile").exists() else ()
    for target in ("setup", "train", "infer", *image, *serves):
        if target == "train" and not (folder / "train.py").exists():
            continue
        yield from run_checker(folder, "make", "-n", target, "PYTHON=python3")


def check_scripts(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    scripts = [*sorted(folder.glob("*.sh")), *sorted(folder.glob("*.sbatch")), *sorted(folder.glob("launch/*.sh"))]
    if scripts:
        yield from run_checker(
            folder, find_program("shellcheck"), "-S", "warning", *(str(path.relative_to(folder)) for path in scripts)
        )
    if (folder / "Dockerfile").exists():
        yield from run_checker(folder, find_program("hadolint"), "--failure-threshold", "error", "Dockerfile")


def check_types(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Without the libraries: their own annotations do not describe them (tokenizer | None, ...)."""
    words = ("check", "--python", sys.base_prefix, "--ignore", "import-not-found", "--output-format", "concise")
    yield from run_checker(folder, find_program("ty"), *words)


def find_program(name: str) -> str | None:
    """Beside the interpreter, or on the path; ``None``: not installed."""
    own = BIN / name
    return str(own) if own.exists() else shutil.which(name)


def run_checker(folder: Path, program: str | None, *words: str) -> Iterator[str]:
    if program is None:
        return
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        yield f"{Path(program).name} {' '.join(words)}: {(done.stdout + done.stderr).strip()[:600]}"
