"""cpuid.csv as hwloc writes it."""

from __future__ import annotations

import pytest

from hwdetect.probes.cpu.cpuid_dump import parse_csv


@pytest.mark.parametrize("cell", ["\x1f0", "\x1c1", "٣", "\u20031"])
def test_a_cell_that_is_no_number_of_ascii_is_not_read(cell):
    """Python counts separators of records as blanks, and digits of all scripts as digits; int() takes not all of them."""
    assert parse_csv(f"0,{cell},20,1970169159,1818588270,1231384169\n") == {}
