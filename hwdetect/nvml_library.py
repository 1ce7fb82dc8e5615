"""Finding NVIDIA's management library without paying for the binding where there is none."""

from __future__ import annotations

import ctypes
import sys

# WSL2 may list a stub first on the loader path; the driver's own library is here.
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"


def load():
    """The ``pynvml`` module, or a sentence that says why there is none (NVML's own code 12)."""
    if not _findable():
        return "nvml_library_not_found: no libnvidia-ml.so.1 on the loader path (no NVIDIA driver)"
    try:
        import pynvml
    except ImportError:
        return "nvml_binding_not_found: the package nvidia-ml-py is not installed"
    return pynvml


def _findable() -> bool:
    names = ("nvml.dll",) if sys.platform == "win32" else (WSL_LIBRARY, "libnvidia-ml.so.1")
    for name in names:
        try:
            ctypes.CDLL(name)  # once loaded, the same library answers by its soname: the real one before a stub
        except OSError:
            continue
        return True
    return False
