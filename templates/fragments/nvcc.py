"""Is CUDA's compiler there? DeepSpeed asks for its version before it compiles its reader of disks: minutes too late."""

import os
import shutil
import sys

COMMANDS = ("nvcc", "/usr/local/cuda/bin/nvcc")


def check_nvcc() -> None:
    """Stop with what to install."""
    if "CUDA_HOME" not in os.environ and not any(map(shutil.which, COMMANDS)):
        sys.exit(
            "Kernels are compiled when this runs, and there is no nvcc: install the CUDA toolkit of PyTorch's CUDA "
            "version, and apt-get install libaio-dev (or set CUDA_HOME)."
        )
