"""Make the environments of PyTorch/XLA and TensorFlow, as their projects do: `python tests/xla/environments.py HOME`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))

from environments import list_packages, make_environment

from generator.case.stacks import list_builds, load_stack

ROLES = ("train-xla", "train-tensorflow")

if __name__ == "__main__":
    for role in ROLES:
        make_environment(Path(sys.argv[1]) / role, list_packages(load_stack(role, next(iter(list_builds(role))))))
