"""Everything a decision may depend on."""

from __future__ import annotations

from dataclasses import dataclass

from generator.case.layout import ONE_DEVICE, Layout
from generator.case.stacks import Stack
from generator.case.vendors import Skeleton, Vendor, choose_vendor
from generator.case.vendors.cpu import explain_without_wheels
from generator.case.workload import Workload
from generator.model import ModelSpec
from hwdetect.types import Device, Hardware, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything a decision may depend on. ``device`` is the accelerator used, or the CPU seen as a device.

    ``devices_per_node`` counts the usable accelerators that are like ``device`` in one of ``nodes`` equal nodes,
    ``accelerators`` are their indices; ``links`` join them (by place among them, from 0), ``network_bytes_per_s`` is one node's rate to the others.
    ``device_memory_bytes`` is what a process can have of one device's memory, ``shared_memory_bytes`` all of it where the host shares that.
    ``layout`` is filled once it is chosen: ``Technique.edits`` may read it, nothing else.
    """

    hardware: Hardware
    device: Device
    device_memory_bytes: int
    model: ModelSpec
    workload: Workload
    stack: Stack
    devices_per_node: int = 1
    nodes: int = 1
    accelerators: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    network_bytes_per_s: float | None = None
    shared_memory_bytes: int | None = None
    layout: Layout = ONE_DEVICE

    @property
    def devices(self) -> int:
        """All that could be used."""
        return self.devices_per_node * self.nodes

    @property
    def on_cpu(self) -> bool:
        return self.device.kind == "cpu"

    @property
    def vendor(self) -> Vendor:
        """KeyError for a device that nothing is planned for."""
        vendor = choose_vendor(self.device.vendor, self.device.kind, self.workload.framework)
        if vendor is None:
            raise KeyError(self.device.vendor)
        return vendor

    def explain_unemitted(self) -> str | None:
        """Why no project can be made for the device or its host, or ``None``."""
        skeleton = self.vendor.skeleton
        of_work = skeleton.explain_work(self.workload, self.model) if skeleton else None
        return (
            self.vendor.explain_unemitted(self.device)
            or of_work
            or explain_without_wheels(self.hardware.cpu.architecture)
        )

    @property
    def skeleton(self) -> Skeleton | None:
        """The project of its own that is made of the case, ``None`` where that is Trainer's, or there is none."""
        skeleton = self.vendor.skeleton
        return skeleton if skeleton and skeleton.explain_work(self.workload, self.model) is None else None

    @property
    def portable(self) -> bool:
        """The machine is not known: only what works everywhere may be chosen."""
        return self.device.id == "portable"

    def explain_missing(self, ability: str) -> str | None:
        """Why the device has not one of ``ABILITIES``, or ``None``."""
        return self.vendor.explain_missing(ability, self.device)
