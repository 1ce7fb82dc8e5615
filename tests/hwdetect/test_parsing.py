"""Numbers in the outputs of tools: with their units, and no part of a number that is written otherwise."""

from __future__ import annotations

import pytest

from hwdetect.probes.parsing import parse_mebibytes, parse_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("350.00 W", 350.0), ("81559 MiB", 81559.0), ("-5", -5.0), ("  7 C", 7.0), ("16x", 16.0)),
        *(("1,000 W", None), ("1 000 W", None), ("1.000.000", None), ("350. W", None)),
        *(("N/A", None), ("[N/A]", None), ("", None), (None, None), ("\u0661\u0662", None)),
    ],
)
def test_the_leading_number_is_read_whole_or_not_at_all(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        *(("81559 MiB", 81559), ("81559", 81559), ("14248.00 MiB", 14248), (" 512MiB ", 512), ("0 MiB", 0)),
        *(("80 GiB", None), ("81559 MB", None), ("81,559 MiB", None), ("81 559 MiB", None), ("81.559 MiB", None)),
        *(("-1 MiB", None), ("N/A", None), ("", None), (None, None)),
    ],
)
def test_memory_of_another_unit_is_no_reading(text, mebibytes):
    assert parse_mebibytes(text) == (None if mebibytes is None else mebibytes << 20)
