"""Are the compilers there that Triton, Inductor or DeepSpeed call? They ask at the first step: minutes too late."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
COMMANDS = {"gcc": ("gcc", "clang"), "g++": ("g++",)}
"""The first that is there is taken, unless VARIABLES names one."""
VARIABLES = {"gcc": "CC", "g++": "CXX"}
ADVICE = {
    "gcc": "no C compiler: apt-get install gcc libc6-dev",
    "g++": "no C++ compiler: apt-get install g++",
}


def check_compilers(*needed: str) -> None:
    """Stop with what to install."""
    for name in needed:
        if VARIABLES[name] not in os.environ and not any(map(shutil.which, COMMANDS[name])):
            sys.exit(f"Kernels are compiled when this runs, and there is {ADVICE[name]} (or set {VARIABLES[name]}).")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        sys.exit(f"Kernels are compiled when this runs, and Python.h is missing: apt-get install python{VERSION}-dev.")
