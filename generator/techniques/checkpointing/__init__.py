"""Which activations are kept for the backward pass and which are computed again."""

ORDER = 40
