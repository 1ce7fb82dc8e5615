"""Accelerators beside the GPUs: TPU, Gaudi, Neuron, Ascend. No machine mixes them."""

from __future__ import annotations

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.ascend import read_ascend
from hwdetect.probes.google import read_tpu
from hwdetect.probes.habana import read_gaudi
from hwdetect.probes.neuron import read_neuron
from hwdetect.probes.notes import Notes
from hwdetect.probes.partial import NOTHING, PartialHardware

ACCELERATOR_CLASSES = frozenset({0x1200, 0x0880, 0x0300, 0x0302, 0x0380, 0x1180})


def read_others(machine: Machine, notes: Notes) -> PartialHardware:
    """The first of the four kinds that is there."""
    listed = pci.list_pci_devices(machine, ACCELERATOR_CLASSES)
    for reader in (read_tpu, read_gaudi, read_neuron, read_ascend):
        hardware = reader(machine, listed, notes)
        if hardware.boards or hardware.nodes:
            return hardware
    return NOTHING
