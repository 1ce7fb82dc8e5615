"""Which optimizer steps, and how its states are stored."""

ORDER = 50
