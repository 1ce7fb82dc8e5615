"""Which attention implementation runs."""

ORDER = 30
