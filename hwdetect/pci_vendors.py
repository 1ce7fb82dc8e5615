"""Makers of accelerators by the numbers that PCI gives them (https://pci-ids.ucw.cz)."""

from __future__ import annotations

PCI_VENDORS = {"nvidia": "10de", "amd": "1002", "intel": "8086", "habana": "1da3", "aws": "1d0f", "google": "1ae0"}
VENDORS_BY_PCI = {number: vendor for vendor, number in PCI_VENDORS.items()}
