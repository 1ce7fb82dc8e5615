"""Figures as people read them."""

from __future__ import annotations

import pytest

from generator.figures import format_figure, format_rate


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.27163, 3, "0.272"),
        (16.44, 3, "16.4"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (1882.4, 3, "1,882"),
        (110.2, 2, "110"),
    ],
)
def test_figures_are_written_without_an_exponent(value, digits, text):
    assert format_figure(value, digits) == text


@pytest.mark.parametrize(("value", "text"), [(0.0294, "0.0294"), (6.71, "6.71"), (10.4, "10"), (58964.2, "58,964")])
def test_a_slow_rate_is_not_none(value, text):
    assert format_rate(value) == text
