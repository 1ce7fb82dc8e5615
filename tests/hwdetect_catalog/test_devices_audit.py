"""The catalogue beside a pci.ids: an old one is told from a wrong id."""

from __future__ import annotations

import pytest

from benchmarks.devices_audit import audit_pci
from hwdetect import devices

TOLD = "#\tVersion: {}\n10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n{}"


@pytest.mark.parametrize(
    ("version", "more", "wrong"),
    [
        ("2026.08.22", "", ["rtx-5090: 10de:2b85 is not in this pci.ids, which the file names as its source"]),
        ("2023.04.10", "", []),
        ("2023.04.10", "\t2b85  GB202 [GeForce RTX 5080]\n", ["rtx-5090: 10de:2b85 is 'GB202 [GeForce RTX 5080]'"]),
        ("2023.04.10", "\t2b85  GB202 [GeForce RTX 5090]\n", []),
    ],
)
def test_an_id_that_an_old_list_cannot_have_is_no_difference(version, more, wrong, tmp_path, capsys):
    """Debian 12's is of April 2023: `make devices-audit` ended with 105 differences that are none."""
    path = tmp_path / "pci.ids"
    path.write_text(TOLD.format(version, more), encoding="utf-8")
    known = tuple(device for device in devices() if device.id in ("rtx-4090", "rtx-5090"))
    assert audit_pci(path, known) == wrong
    told = (
        "1 ids are not in this pci.ids of 2023.04.10: they were read in that of 2026.08.22" in capsys.readouterr().out
    )
    assert told == (version < "2026" and not more)
