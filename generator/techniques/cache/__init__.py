"""How keys and values of past tokens are kept during generation."""

ORDER = 82
