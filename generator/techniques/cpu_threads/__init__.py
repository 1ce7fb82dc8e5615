"""How many CPU threads compute."""

ORDER = 100
