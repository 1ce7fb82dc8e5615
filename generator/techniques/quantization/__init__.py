"""How the weights of a served model are stored."""

ORDER = 15
