"""How logits and cross-entropy are computed."""

ORDER = 60
