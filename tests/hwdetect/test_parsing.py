"""Numbers in the outputs of tools: with their units, and no part of a number that is written otherwise."""

from __future__ import annotations

import pytest

from hwdetect.probes.parsing import explain_cut, parse_mebibytes, parse_number


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


@pytest.mark.parametrize(
    ("text", "end", "why"),
    [
        (None, None, None),
        ("  \n", None, None),
        ('[{"gpu": 0}]', None, None),
        ('[{"gpu": 0}, {"gp', None, "JSON"),
        ("<?xml ?><nvidia_smi_log>\n</nvidia_smi_log>", None, None),
        ("<?xml ?><nvidia_smi_log>\n<gpu", None, "XML"),
        ("GPU 0: NVIDIA A100 (UUID: GPU-1)\n", None, None),
        ("GPU 0: NVIDIA A100 (UUID: GPU-1)\r\n", None, None),
        ("GPU 0: NVIDIA A100 (UUID: GPU-1)\nGPU 1: NVI", None, "within a line"),
        ("+-----+\n| 0  910B |\n+=====+\n", None, None),
        ("+-----+\n| 0  910B |\n", None, "lower border"),
        ("┏━━━┓\n┃ a ┃\n┡━━━┩\n│ 1 │\n└───┘\nthen words\n", None, None),
        ("┏━━━┓\n┃ a ┃\n┡━━━┩\n│ 1 │\n", None, "lower border"),
        ("|===+===|\n| 0  910B |\n|===+===|\n", "Process", "Process"),
        ("+---+\n| Process id |\n+---+\n", "Process", None),
    ],
)
def test_an_answer_whose_end_is_missing_is_known_by_its_form(text, end, why):
    told = explain_cut(text, end)
    assert told is None if why is None else why in told
