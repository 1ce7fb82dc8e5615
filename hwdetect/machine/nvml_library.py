"""Finding NVIDIA's management library without loading it: a library that hangs or crashes must not take us along."""

from __future__ import annotations

import ctypes
import os
import sys

# WSL2 may list a stub first on the loader path; the driver's own library is here.
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
NAME = "libnvidia-ml.so.1"
LOADER_CACHE = "/etc/ld.so.cache"
# Where the loader looks without a cache, and where NixOS and driver containers put the library (outside of any cache).
FOLDERS = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    f"/usr/lib/{os.uname().machine}-linux-gnu" if hasattr(os, "uname") else "",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
NO_LIBRARY = "nvml_library_not_found: no libnvidia-ml.so.1 on the loader path (no NVIDIA driver)"


def load_nvml():
    """The ``pynvml`` module with its library loaded, or a sentence that says why there is none. For a child process."""
    try:
        import pynvml
    except ImportError:
        return "nvml_binding_not_found: the package nvidia-ml-py is not installed"
    if os.path.exists(WSL_LIBRARY):  # noqa: PTH110
        try:
            ctypes.CDLL(WSL_LIBRARY)  # once loaded, the same library answers by its soname: the real one before a stub
        except OSError as error:
            return f"nvml_library_not_found: {error}"
    return pynvml


def is_findable() -> bool:
    """Whether the loader would find the library. Loads nothing."""
    if sys.platform == "win32":
        places = (os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "nvml.dll"),)  # noqa: PTH118
        return any(os.path.exists(place) for place in places)  # noqa: PTH110
    own = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.exists(f"{folder}/{NAME}") for folder in (*own, *FOLDERS) if folder) or _is_in_loader_cache()  # noqa: PTH110


def _is_in_loader_cache() -> bool:
    try:
        with open(LOADER_CACHE, "rb") as file:  # noqa: PTH123
            return NAME.encode() in file.read()
    except OSError:
        return False
