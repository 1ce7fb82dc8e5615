"""Compiles device.cpp and lays it down so that PyTorch finds it:  python build.py FOLDER

A process that has FOLDER on its PYTHONPATH has CUDA devices. A minute and a half of one core, and nothing where it is compiled already.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).resolve().with_name("device.cpp")
ENTRY_POINT = "[torch.backends]\nhost_cuda = host_cuda:install\n"


def explain_obstacle() -> str | None:
    import torch

    if torch.backends.cuda.is_built() or torch.version.hip:
        return "this PyTorch has CUDA devices of its own: its CPU build is needed"
    return None if shutil.which("g++") else "g++ is missing, which compiles tests/host_cuda/device.cpp"


def build(folder: Path) -> Path:
    """A folder for PYTHONPATH, below this one."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = [f"-isystem{path}" for path in (*include_paths(), sysconfig.get_paths()["include"])]
    libraries = [word for path in library_paths() for word in (f"-L{path}", f"-Wl,-rpath,{path}")]
    command = [
        "g++",
        "-shared",
        "-fPIC",
        "-std=c++20",
        "-O1",
        "-w",
        "-DTORCH_EXTENSION_NAME=host_cuda_device",
        *headers,
    ]
    command += [str(SOURCE), *libraries, "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    text = "\n".join((*command, torch.__version__)).encode() + SOURCE.read_bytes()
    place = folder / hashlib.sha256(text).hexdigest()[:16]
    library = place / "host_cuda_device.so"
    if not library.exists():
        (place / "host_cuda-1.dist-info").mkdir(parents=True, exist_ok=True)
        (place / "host_cuda-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: host-cuda\nVersion: 1\n")
        (place / "host_cuda-1.dist-info/entry_points.txt").write_text(ENTRY_POINT)
        unfinished = library.with_suffix(".unfinished")
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.rename(library)
    shutil.copy(SOURCE.with_name("host_cuda.py"), place)
    return place


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
