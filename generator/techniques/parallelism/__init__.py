"""How the work is divided over several devices, and how many of them are used."""

ORDER = 5
