"""Versions of installed Python packages, from the names of their metadata folders: nothing is imported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_METADATA = re.compile(r"(.+?)-([^-]+)\.(?:dist-info|egg-info)")


def list_versions(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(name, version) of those that this Python would import, in the order asked. One listing a path entry.

    ``importlib.metadata`` would do, at some 20 ms: it parses mail headers. The folder's name has the same version.
    """
    wanted = {name.replace("-", "_").lower(): name for name in names}
    versions: dict[str, str] = {}
    for entry in sys.path:
        for file in _list_names(entry):
            match = _METADATA.fullmatch(file)
            key = match.group(1).replace("-", "_").replace(".", "_").lower() if match else ""
            if match and key in wanted:
                # The first entry of sys.path that has a package is the one that an import takes.
                versions.setdefault(wanted[key], match.group(2))
    return tuple((name, versions[name]) for name in names if name in versions)


def read_torch_build() -> str | None:
    """``cu130``, ``rocm6.4``, ``xpu`` or ``cpu``, from the text of ``torch/version.py``."""
    for entry in sys.path:
        try:
            text = (Path(entry) / "torch" / "version.py").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        return parse_torch_build(text)
    return None


def parse_torch_build(version_text: str) -> str | None:
    """The build from the lines ``cuda: Optional[str] = '13.0'``, ``hip``, ``xpu``."""
    assignments = dict(re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]+)['\"]", version_text, re.MULTILINE))
    # A build has one of these as a string and the others as None, which the pattern does not match.
    if "cuda" in assignments:
        return "cu" + assignments["cuda"].replace(".", "")
    if "hip" in assignments:
        # HIP counts builds in its third number; ROCm releases are named by the first two.
        return "rocm" + ".".join(assignments["hip"].split(".")[:2])
    if "xpu" in assignments:
        return "xpu"
    return "cpu" if "__version__" in assignments else None


def _list_names(entry: str) -> list[str]:
    try:
        return os.listdir(entry or ".")  # noqa: PTH208
    except OSError:
        return []
