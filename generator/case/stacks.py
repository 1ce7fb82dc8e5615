"""Versions that were tested together, by role, and which build of torch a machine can run (``stacks.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from generator.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build of torch: where its wheels are, and what driver and compute capability it needs."""

    name: str
    index: str
    image: str
    min_driver: str | None = None
    min_capability: str | None = None
    max_capability: str | None = None
    packages: tuple[str, ...] = ()
    """of the image's distribution, which the build needs there"""
    beside: tuple[str, ...] = ()
    """distributions of the same index that this build of torch depends on, and PyPI has not"""
    plugins: tuple[tuple[str, str], ...] = ()
    """distributions of PyPI, with their versions, that add the device to this torch, or look at it"""
    engine_index: str = ""
    """where an engine's own wheels of this build are, and the torch that they were built with"""
    loads: str = ""
    """what its wheels load from the machine, and do not bring"""
    without: tuple[str, ...] = ()
    """packages of the role that this build brings itself, or has no use for"""
    python: str | None = None
    """versions of Python that its wheels are for, where they are fewer than the role's"""
    targets: tuple[str, ...] = ()
    """LLVM's names of the targets that its kernels are compiled for; none: those of torch"""
    checkpoints: tuple[str, ...] | None = None
    """quantized formats (quant_method of config.json) that the engine runs with this build; ``None``: all that it runs"""
    toolkit_image: str | None = None
    """an image with the CUDA toolkit of this build, for what is compiled with nvcc"""
    ran: str = ""
    """of an accelerator's, where and how perfgen's authors ran it, if they did"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """``packages`` pairs a distribution with its tested version; ``missing`` one that cannot be had with the reason."""

    role: str
    python: str
    packages: tuple[tuple[str, str], ...]
    build: Build
    missing: tuple[tuple[str, str], ...] = ()

    def version(self, distribution: str) -> str | None:
        return dict(self.packages).get(distribution)

    def why_missing(self, distribution: str) -> str | None:
        """Why ``distribution`` cannot be installed in this stack, or ``None`` where it can."""
        if self.version(distribution):
            return None
        return dict(self.missing).get(distribution, f"{distribution} is not part of the tested stack {self.role}")


NO_BUILD = Build(name="none", index="", image="")
"""of a device for which no project is made"""


@cache
def _read_tables() -> dict:
    return tomllib.loads(resources.files("generator.case").joinpath("stacks.toml").read_text(encoding="utf-8"))


def list_builds(role: str) -> dict[str, Build]:
    """The builds of torch that a role can have, its own or those of the role that it names. KeyError for an unknown role."""
    entry = _read_tables()[role]
    builds = _read_tables()[entry["builds_of"]]["builds"] if "builds_of" in entry else entry["builds"]
    return {
        name: Build(name=name, **build | {"plugins": tuple(build.get("plugins", {}).items())})
        for name, build in builds.items()
    }


def load_stack(role: str, build: str, missing: Mapping[str, str] | None = None) -> Stack:
    """The stack for ``role`` with one of its builds; KeyError for an unknown one. ``missing``: what a vendor's devices cannot
    have of it, and why."""
    entry = _read_tables()[role]
    chosen = NO_BUILD if build == NO_BUILD.name else list_builds(role)[build]
    lacking = (
        entry.get("missing", {}) | dict.fromkeys(chosen.without, f"{chosen.name} needs none") | dict(missing or {})
    )
    packages = entry["packages"] | dict(chosen.plugins)
    return Stack(
        role=role,
        python=chosen.python or entry["python"],
        packages=tuple(sorted((name, version) for name, version in packages.items() if name not in lacking)),
        build=chosen,
        missing=tuple(sorted(lacking.items())),
    )


def choose_build_of(kind: str, role: str, device: str) -> str:
    """The first build of a role whose name begins with ``kind``. Raises ``UsageError`` where it has none."""
    for name in list_builds(role):
        if name.startswith(kind):
            return name
    raise UsageError(
        f"the tested stack {role} has no build for {device} ({kind})",
        f"those that it has are {', '.join(list_builds(role))}; generator/case/stacks.toml takes others (CONTRIBUTING.md, Add a vendor)",
    )


def choose_cuda_build(role: str, capability: str | None, driver: str | None, device: str) -> str:
    """The newest CUDA build that the board and its driver can run; what is not known does not exclude one.

    Raises ``UsageError`` naming the driver that would do.
    """
    builds = [build for build in list_builds(role).values() if build.min_driver]
    fitting = [b for b in builds if capability is None or _is_between(capability, b.min_capability, b.max_capability)]
    if not fitting:
        raise UsageError(
            f"no build of torch {_read_tables()[role]['packages']['torch']} runs on compute capability {capability} ({device})"
        )
    for build in fitting:
        if driver is None or parse_version(driver) >= parse_version(build.min_driver or "0"):
            return build.name
    oldest = min(fitting, key=lambda b: parse_version(b.min_driver or "0"))
    raise UsageError(
        f"driver {driver} is too old for every CUDA build of torch that {device} can run",
        f"install driver {oldest.min_driver} or newer ({oldest.name})",
    )


def _is_between(value: str, low: str | None, high: str | None) -> bool:
    return (low is None or parse_version(low) <= parse_version(value)) and (
        high is None or parse_version(value) <= parse_version(high)
    )


def parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
