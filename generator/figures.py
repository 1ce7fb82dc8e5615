"""Numbers as people read them."""

from __future__ import annotations


def format_figure(value: float, digits: int = 3) -> str:
    """To so many digits, and whole with commas from 10 to their power on: `g` alone would write 1.1e+02."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def format_rate(value: float) -> str:
    """Whole, but a rate below ten to three digits: a token in two minutes is not none."""
    return f"{value:,.0f}" if value >= 10 else format_figure(value)
