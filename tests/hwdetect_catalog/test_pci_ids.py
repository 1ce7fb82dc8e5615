"""PCI ids against the database of the PCI ID project (package hwdata or pci.ids): each id is the board that its file says.

``PCI_IDS=/path/to/pci.ids`` reads a newer copy than the system's. What this cannot see: an id that the copy at hand does not
have yet, or lists by its chip alone; and nothing at all where no copy is installed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.devices_audit import read_pci_names, read_pci_version
from hwdetect import catalog
from hwdetect.catalog.matching import DISTINGUISHING, MAKERS, SERIES, fits_memory, split_words
from hwdetect.types import Device

PLACES = (os.environ.get("PCI_IDS", ""), "/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
DATABASE = next((Path(place) for place in PLACES if place and Path(place).is_file()), None)


OLDEST = "2025"


def explain_unusable(path: Path | None) -> str | None:
    """Why a copy tells nothing: it is not there, or from before boards got the names that they have now (Debian 12's is of 2023)."""
    if path is None:
        return "no pci.ids here: install the package pci.ids or hwdata"
    version = read_pci_version(path)
    old = version is not None and version < OLDEST
    return f"{path} is of {version}, before {OLDEST}: PCI_IDS names a newer one" if old else None


UNUSABLE = explain_unusable(DATABASE)
pytestmark = pytest.mark.skipif(UNUSABLE is not None, reason=UNUSABLE or "")

# The generation that a chip's name in the database means.
CHIPS = (
    (r"GP1", {"pascal"}), (r"GV1", {"volta"}), (r"TU1", {"turing"}), (r"GA1", {"ampere"}), (r"AD1|GN21", {"ada"}),
    (r"GH1", {"hopper"}), (r"GB1|GB2|GN22", {"blackwell"}), (r"Vega 20", {"gcn5"}), (r"Arcturus", {"cdna"}),
    (r"Aldebaran", {"cdna2"}), (r"Aqua Vanjaram", {"cdna3", "cdna4"}), (r"Navi 2", {"rdna2"}), (r"Navi 3", {"rdna3"}),
    (r"Navi 4", {"rdna4"}), (r"DG2", {"xe-hpg"}), (r"Battlemage", {"xe2"}), (r"Ponte Vecchio", {"xe-hpc"}),
)  # fmt: skip
# What the database calls otherwise, and why that is the same board.
CALLED_OTHERWISE = {
    (
        "h100-nvl-94gb",
        "H100L 94GB",
    ): "the code name of the NVL board (hwdetect.catalog.matching.VIRTUAL_BOARDS has it too)",
    ("max-1550", "Data Center GPU Max 1550VG"): "a variant of the 1550",
    ("gh200-96gb", "GH200 120GB / 480GB"): "sizes of the host's memory, in one name",
    ("h20-3e-141gb", "H20 HBM3e"): "its memory, for which it is named",
    ("mi60", "Radeon Instinct"): "a series without a model",
    ("mi60", "Radeon Pro/Radeon Instinct"): "two series without a model",
    ("rtx-2000-ada", "RTX 2000 / 2000E Ada Generation"): "two boards in one name",
    ("mi50-16gb", "Radeon Pro VII/Radeon Instinct MI50 32GB"): "until 2023; one id for both sizes since",
}
# Boards whose name is the beginning of another one's; their memory tells them apart.
BEGINS_ALIKE = {("h20", "h20-3e-141gb"), ("rtx-5090-d", "rtx-5090-d-v2")}
LAPTOP = re.compile(r"laptop|mobile|max-q", re.IGNORECASE)
NO_NAMES = MAKERS | SERIES | {"generation", "hbm3", "hbm3e", "data", "center", "ai", "ac", "144g", "aws"}
FORMS = frozenset(["pcie", "nvl", "sxm"])


def find_product(name: str) -> str:
    """What stands in brackets (``AD102 [GeForce RTX 4090]``) or parentheses; empty for a chip alone."""
    match = re.search(r"\[(.+)\]", name) or re.search(r"\((.+)\)", name)
    return match.group(1) if match else name if "Accelerator" in name else ""


def list_words(name: str) -> set[str]:
    return set(split_words(re.sub(r"(?<=gaudi) (?=\d)", "", LAPTOP.sub(" laptop ", name.lower()))))


def list_name_words(device: Device) -> set[str]:
    """The words that name the product: no maker, no series, no form factor, no size, no generation."""
    words = list_words(device.name) - NO_NAMES - FORMS - {device.architecture}
    return {word for word in words if not re.fullmatch(r"\d+gb", word)}


def find_difference(device: Device, product: str) -> str | None:
    """Why none of the products that the database names (``A2 / A16``) is the device; ``None`` where one is."""
    own, reasons = list_name_words(device), []
    for alternative in product.split("/"):
        words = list_words(alternative)
        missing = own - words
        surplus = (words & (DISTINGUISHING | {"laptop"})) - list_words(device.name) - FORMS - {device.architecture}
        sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
        memory_fits = not sizes or any(
            f"{size}gb" in list_words(device.name) or fits_memory(size * unit, device.memory_bytes)
            for size in sizes
            for unit in (10**9, 2**30)
        )
        forms = words & FORMS, (list_words(device.name) | list_words(device.id)) & FORMS
        if not missing and not surplus and memory_fits and (not all(forms) or forms[0] & forms[1]):
            return None
        reasons.append(
            f"{alternative.strip()!r}: missing {sorted(missing)}, too much {sorted(surplus)}, sizes {sizes}, {forms}"
        )
    return "; ".join(reasons)


NAMES = read_pci_names(DATABASE) if DATABASE else {}
IDS = [(device, pci_id) for device in catalog.list_devices() for pci_id in device.pci_ids]
LISTED = [(device, pci_id) for device, pci_id in IDS if find_product(NAMES.get(pci_id, ""))]


@pytest.mark.parametrize(("device", "pci_id"), LISTED, ids=lambda value: getattr(value, "id", value))
def test_an_id_is_the_board_of_its_file(device, pci_id):
    product = find_product(NAMES[pci_id])
    if (device.id, product) not in CALLED_OTHERWISE:
        assert find_difference(device, product) is None, f"{pci_id} is {NAMES[pci_id]!r}"


@pytest.mark.parametrize(("device", "pci_id"), LISTED, ids=lambda value: getattr(value, "id", value))
def test_the_chip_is_of_the_generation(device, pci_id):
    generations = next((names for pattern, names in CHIPS if re.match(pattern, NAMES[pci_id])), None)
    assert generations is None or device.architecture in generations, NAMES[pci_id]


def test_most_ids_are_in_the_database():
    assert len(LISTED) >= len(IDS) / 2, f"{DATABASE} knows {len(LISTED)} of {len(IDS)} ids: too old to tell anything"


def test_the_id_of_another_board_does_not_pass():
    """Every file with the id of every other one, but for boards of one name in several sizes."""
    passed = {
        (device.id, other.id)
        for device in catalog.list_devices()
        for other, pci_id in LISTED
        if device.vendor == other.vendor
        and pci_id not in device.pci_ids
        and list_name_words(device) != list_name_words(other)
        and find_difference(device, find_product(NAMES[pci_id])) is None
        and any(re.match(p, NAMES[pci_id]) and device.architecture in names for p, names in CHIPS)
    }
    assert passed == BEGINS_ALIKE
