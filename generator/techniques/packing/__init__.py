"""How texts of different length are put into batches."""

ORDER = 80
